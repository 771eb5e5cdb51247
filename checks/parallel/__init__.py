"""The ranks of one run: put together, compared with each other, and held against a run of one process."""
