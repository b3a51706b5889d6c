"""Kinds of input: how items become numbers, are padded, and are named in pictures."""
