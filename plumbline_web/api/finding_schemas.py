"""Bodies of the routes of findings."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema
from pydantic import ConfigDict


class Finding(Schema):
    id: str = Field(description="F-12")
    validation: str = Field(description="V-3")
    check: str
    framework: str
    version: str = Field(description="of the framework that was validated")
    model: str
    sentence: str
    pattern: str
    first_wrong: str
    silent: bool = Field(description="the run ended well: nothing but this check shows the fault")
    regressed: bool = Field(description="the same wish had passed this check before")
    state: str = Field(description="open, waiting, decided, repeated or gone")
    decision: str = Field(description="new, known, not-a-problem, check-wrong, inconclusive, needs-evidence, or empty")
    reason: str
    decided_by: str
    decided_at: datetime | None
    assignee: str
    due: str
    snoozed_until: str
    group: str = Field(description="equal for findings that are one fault")
    created_at: datetime


class Suggestion(Schema):
    problem: str = Field(description="P-45")
    title: str
    basis: str = Field(description="same signature, same software or same kind of fault")
    reasons: list[str]


class FindingComment(Schema):
    author: str
    at: datetime
    text: str = Field(description="Markdown")


class FindingDetail(Finding):
    problems: list[str] = Field(description="what it was decided to be")
    suggestions: list[Suggestion]
    comments: list[FindingComment]
    row_version: int = Field(description="rises with every change; give it back with a decision")


class FindingPage(Schema):
    rows: list[Finding]
    next_cursor: str | None


class DecisionIn(Schema):
    model_config = ConfigDict(title="Decision")
    decision: str = Field(description="new, known, not-a-problem, check-wrong, inconclusive or needs-evidence")
    problem: str | None = Field(None, description="P-45; of new and known")
    reason: str | None = Field(None, description="of not-a-problem and check-wrong")
    row_version: int | None = Field(None, description="refuse (409, stale) where the finding has changed since")


class Deed(Schema):
    action: int | None = Field(description="what POST /actions/{action}/undo undoes; null where nothing changed")
    changed: list[str] = Field(description="F-12")
    skipped: list[str] = Field(description="a sentence for each finding that was left as it is")
