"""Cross entropy of many symbols on the CPU: what a loss does between its products."""
