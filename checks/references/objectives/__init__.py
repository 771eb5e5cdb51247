"""What a step minimises, as a function of the log-probabilities that its forwards give: one module an objective."""

from __future__ import annotations

from checks.references.objectives.objective import Computed, Objective
from checks.references.objectives.preference import PreferenceMargin
from checks.references.objectives.token_mean import TokenMean

__all__ = ["Computed", "Objective", "PreferenceMargin", "TokenMean"]
