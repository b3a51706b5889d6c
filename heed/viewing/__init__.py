"""From weights to something a person sees. Views take plain panels and know no model."""
