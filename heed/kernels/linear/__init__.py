"""Linear maps of few rows on the CPU, as the steps of a decoder need them."""
