"""What to learn and how it is judged: one story per file."""
