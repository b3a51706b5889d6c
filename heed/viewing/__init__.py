"""Pictures, pages and terminal output of weights. Views take plain panels, and import no model."""
