"""The memory of a training step: what was counted in the run, and what the shapes imply."""
