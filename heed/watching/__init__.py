"""What every attention did in a pass: records in memory and on disk, and the walk of a query."""
