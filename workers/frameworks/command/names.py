"""A command's names are those of its own model; where the checkpoint has others, a file of the user's maps them.

The recorder reads that file (`options=names=FILE`, docs/capture-format.md); without it wrappers' prefixes come off.
"""

from __future__ import annotations

from workers.frameworks.transformers.names import name_parameter

__all__ = ["name_parameter"]
