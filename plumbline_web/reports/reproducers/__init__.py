"""Reproducers that Plumbline writes: scripts of plain torch and the framework, on a tiny model that they build."""
