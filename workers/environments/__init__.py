"""Environments: one Python with one set of framework releases, built once, named, and run from."""
