"""Models to validate with: tiny families with weights under which faults show, and real checkpoints."""

from __future__ import annotations

from checks.models.checkpoint import list_matrices
from checks.models.families import FAMILIES
from checks.models.resolve import ResolvedModel, check_positions, resolve_model

__all__ = ["FAMILIES", "ResolvedModel", "check_positions", "list_matrices", "resolve_model"]
