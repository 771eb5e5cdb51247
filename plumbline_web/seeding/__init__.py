"""A database of made-up rows at the size of years: what the pages are timed on."""
