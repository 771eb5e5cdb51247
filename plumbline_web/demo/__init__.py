"""`plumbline demo`: two validations, from an empty directory to their tables."""
