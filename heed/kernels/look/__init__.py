"""One query of each row to its memory, on the CPU: dot products, softmax, weighted sum."""
