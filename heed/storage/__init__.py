"""What lasts: atomic files, checkpoints, run folders, tensors and JSON that are not trusted."""
