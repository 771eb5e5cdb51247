"""Batches of our own choice that a framework's prepared model is asked about, and what it should have answered."""
