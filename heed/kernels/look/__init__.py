"""One look of each row at its memory, on the CPU: dot products, softmax, and what is gathered."""
