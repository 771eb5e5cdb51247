"""Weights that have left the trainer: what an engine holds after a sync, and what a quantised export stands for."""
