"""Cross entropy of many symbols on the CPU: the part of a loss between its matrix products."""
