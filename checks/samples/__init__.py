"""Training examples: their forms, reading them, and the sample files that ship."""

from __future__ import annotations

from checks.samples.reading import SAMPLE_FILES, read_samples, resolve_data
from checks.samples.sample import Sample

__all__ = ["SAMPLE_FILES", "Sample", "read_samples", "resolve_data"]
