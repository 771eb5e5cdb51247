"""What each reason adds to a suggestion's score, in the units of BM25: a rare shared word adds about 4.

Chosen on the calibration half of the faults (`python -m benchmarks.matching`); docs/matching.md says what each does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Weights:
    """Of words: how much a source's words count. Of places: what is added where the reason holds."""

    statement: float = 1.0
    """words of the signature: the verdict's first statement, the kind of module, the factor, the positions"""
    sentence: float = 0.3
    """words of the whole sentence, with the examples that it gives"""
    check: float = 0.2
    """words that say what the check claims and catches, which all its findings share"""
    also: float = 0.5
    """words of what else failed in the validation, often because of the same fault"""
    used: float = 1.0
    """words of the features that the run used"""
    pattern: float = 3.0
    """the verdict names the problem's pattern"""
    stage: float = 1.0
    """the check judges the problem's stage"""
    component: float = 1.0
    """the check judges the problem's component"""
    company: float = 0.75
    """share of the last two where not this check judges it, but another that failed in the validation"""
    same_framework: float = 6.0
    """the problem sits in what the run uses"""
    recurs_here: float = 1.0
    """it sits elsewhere, and its group names a framework that the run uses"""
    affected: float = 4.0
    """an installed release is known to have it"""
    not_affected: float = -4.0
    """every installed release is known to be free of it"""
    model: float = 2.0
    """it concerns the model that is trained"""
    other_model: float = -2.0
    """it concerns other models only"""
    named: float = 2.0
    """the check's description names the problem among what it catches"""


DEFAULT = Weights()
