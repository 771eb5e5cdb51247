"""Losses of objectives that learn from preferences or rewards: read from a capture, held against their papers."""
