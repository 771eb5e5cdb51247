"""Models to validate with: tiny families with weights under which faults show, and real checkpoints."""

from __future__ import annotations

from checks.models.checkpoint import list_parameters
from checks.models.families import FAMILIES
from checks.models.resolve import ResolvedModel, check_positions, resolve_model

__all__ = ["FAMILIES", "ResolvedModel", "check_positions", "list_parameters", "resolve_model"]
