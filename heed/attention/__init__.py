"""Attention: score, align, read, and the way they are put together."""
