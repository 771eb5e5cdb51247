"""The GPUs of a machine, lent to runs: so many at once, all or none, in the order of asking."""
