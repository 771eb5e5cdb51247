"""Training examples: their forms, reading them, and the sample files that ship."""

from __future__ import annotations

from checks.samples.preference import Preference
from checks.samples.prompts import Prompt, read_prompts
from checks.samples.reading import PREFERENCES, SAMPLE_FILES, read_preferences, read_samples, resolve_data
from checks.samples.sample import Sample

__all__ = [
    "PREFERENCES",
    "SAMPLE_FILES",
    "Preference",
    "Prompt",
    "Sample",
    "read_preferences",
    "read_prompts",
    "read_samples",
    "resolve_data",
]
