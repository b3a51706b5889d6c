"""Networks assembled from parts; one architecture per file, no attention computed here."""
