"""Lasting files: atomic ones, checkpoints, run folders, tensors and JSON that are not trusted."""
