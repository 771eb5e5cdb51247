"""The registry's entries, by what they are about."""
