"""What the checks see of injected faults, and what they say of healthy runs: `python -m benchmarks.detection`."""
