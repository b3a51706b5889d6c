"""What attention is: score, align, read, and how they are put together."""
