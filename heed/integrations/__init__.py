"""heed inside other people's models: Hugging Face's transformers, and torch.nn."""
