"""A step of a plain Transformer decoder on the CPU: all its layers in one call."""
