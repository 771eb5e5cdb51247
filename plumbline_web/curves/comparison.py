"""Everything that the comparison shows, read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from django.contrib.auth.models import AnonymousUser

from plumbline_web.accounts.models import User
from plumbline_web.curves.compared import Source, read_sources
from plumbline_web.curves.picking import list_choices, read_validations
from plumbline_web.curves.selection import MOST_TRACES, Selection
from plumbline_web.curves.settings_table import Setting, list_settings
from plumbline_web.curves.summary import Line, summarise
from plumbline_web.curves.verdicts import TensorMap, VerdictRow, list_maps, list_verdicts
from plumbline_web.validations.models import Validation


@dataclass(frozen=True)
class Comparison:
    """`validations`: those that are shown, `held_back` of the others until all are asked for."""

    selection: Selection
    validations: tuple[Validation, ...]
    held_back: int
    errors: tuple[str, ...]
    choices: Sequence[Validation]
    sources: tuple[Source, ...]

    @cached_property
    def summary(self) -> tuple[Line, ...]:
        return summarise(self.sources)

    @cached_property
    def verdicts(self) -> tuple[VerdictRow, ...]:
        return list_verdicts(self.validations)

    @cached_property
    def maps(self) -> tuple[TensorMap, ...]:
        return list_maps(self.validations, self.selection.kind)

    @cached_property
    def _settings(self) -> tuple[Setting, ...]:
        return list_settings(self.validations)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What differs, or everything where that is asked for."""
        return tuple(setting for setting in self._settings if setting.differs or self.selection.all_settings)

    @property
    def equal(self) -> int:
        return sum(not setting.differs for setting in self._settings)


def read_comparison(selection: Selection, *, user: User | AnonymousUser) -> Comparison:
    """Read what an address asks for, as far as the person may see it."""
    found = read_validations(selection, user=user)
    shown = found.validations if selection.all_traces else found.validations[:MOST_TRACES]
    return Comparison(
        selection=selection,
        validations=shown,
        held_back=len(found.validations) - len(shown),
        errors=(*selection.errors, *found.errors),
        choices=list_choices(selection, user=user),
        sources=read_sources(selection, visible=[validation.pk for validation in shown]),
    )
