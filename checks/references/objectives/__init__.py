"""What a step minimises, as a function of the log-probabilities that its forwards give: one module an objective."""

from __future__ import annotations

from checks.references.objectives.group_relative import PROXIMAL, VARIANTS, GroupRelative, GroupVariant, Samples
from checks.references.objectives.objective import Computed, Objective, Span
from checks.references.objectives.odds_ratio import OddsRatio
from checks.references.objectives.preference import PreferenceMargin
from checks.references.objectives.prospect import Prospect
from checks.references.objectives.reward import RewardMargin, score_losses
from checks.references.objectives.token_mean import TokenMean

__all__ = [
    "PROXIMAL",
    "VARIANTS",
    "Computed",
    "GroupRelative",
    "GroupVariant",
    "Objective",
    "OddsRatio",
    "PreferenceMargin",
    "Prospect",
    "RewardMargin",
    "Samples",
    "Span",
    "TokenMean",
    "score_losses",
]
