"""Low-rank adapters as a run holds them."""
