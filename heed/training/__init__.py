"""Training: the loop, its steps, and the settings of how weights move."""
