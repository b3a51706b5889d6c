"""What recurrent cells do between their products, on the CPU."""
