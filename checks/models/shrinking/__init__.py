"""Any Hugging Face config shrunk to a model that a laptop trains, keeping what can go wrong in it."""

from __future__ import annotations

from checks.models.shrinking.changes import Change, Shrunk
from checks.models.shrinking.shrink import complete_config, shrink_config

__all__ = ["Change", "Shrunk", "complete_config", "shrink_config"]
