"""Attention itself: score, align, read, and how they are put together."""
