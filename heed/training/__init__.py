"""How weights move."""
