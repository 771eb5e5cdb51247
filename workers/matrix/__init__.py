"""Many validations as one table: frameworks × models × precisions, with a reason beside all that is no pass."""
