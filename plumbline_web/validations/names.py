"""Names that a filter narrows by: frameworks, models, profiles and people, read once from their small tables.

The large table is then narrowed by keys. Joined to the names instead, PostgreSQL cannot tell from its statistics how
many rows one name has, and chooses plans that take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from django.db.models import Exists, OuterRef, Q

from checks.faults import FAULTS
from plumbline_web.accounts.models import User
from plumbline_web.catalog.models import Framework, Profile, TrainedModel
from plumbline_web.validations.models import Validation

NO_PROFILE = "none"


@dataclass(frozen=True)
class Name:
    """One row of a small table. `value`: as an address has it; rows may share one, as a retrained model does."""

    key: int
    value: str
    title: str
    words: str
    """in which a search looks, in lower case"""


class Names:
    """The names by filter, in the order of their titles; each small table is read once, when it is asked for."""

    @cached_property
    def framework(self) -> tuple[Name, ...]:
        rows = Framework.objects.order_by("name")
        return tuple(Name(row.pk, row.name, row.name, f"{row.name} {row.title}".lower()) for row in rows)

    @cached_property
    def model(self) -> tuple[Name, ...]:
        rows = TrainedModel.objects.order_by("name", "pk")
        return tuple(Name(row.pk, row.name, row.name, f"{row.name} {row.family}".lower()) for row in rows)

    @cached_property
    def profile(self) -> tuple[Name, ...]:
        rows = Profile.objects.order_by("name", "-version")
        return tuple(Name(row.pk, f"{row.name}@{row.version}", str(row), row.name.lower()) for row in rows)

    @cached_property
    def who(self) -> tuple[Name, ...]:
        """People who ever submitted."""
        submitted = Exists(Validation.objects.filter(owner=OuterRef("pk")))
        rows = User.objects.filter(submitted).order_by("username")
        return tuple(Name(row.pk, row.username, row.username, row.username.lower()) for row in rows)

    def choices(self, facet: str) -> list[tuple[str, str]]:
        rows: tuple[Name, ...] = getattr(self, facet)
        found = list(dict.fromkeys((row.value, row.title) for row in rows))
        return [*found, (NO_PROFILE, "no profile")] if facet == "profile" else found

    def find(self, facet: str, value: str) -> list[int]:
        """Keys of the rows of one name."""
        rows: tuple[Name, ...] = getattr(self, facet)
        return [row.key for row in rows if row.value == value]

    def mentions(self, word: str) -> Q | None:
        """Validations in whose names a word occurs; None where it occurs in no name."""
        found = Q()
        columns = {"framework": self.framework, "model": self.model, "profile": self.profile, "owner": self.who}
        for column, rows in columns.items():
            keys = [row.key for row in rows if word in row.words]
            if keys:
                found |= Q(**{f"{column}__in": keys})
        faults = [fault.slug for fault in FAULTS if word in fault.slug]
        if faults:
            found |= Q(inject__in=faults)
        return found or None
