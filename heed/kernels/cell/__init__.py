"""The steps of a GRU on the CPU, products and all."""
