"""What the precision of a run can be told from: dtypes that were recorded, and values that a lower one has rounded."""
