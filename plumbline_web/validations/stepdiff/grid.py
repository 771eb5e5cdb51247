"""The heatmap: rows in the order of the model (embedding → layers → head), a column a parameter kind."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from plumbline_web.validations.stepdiff.heat import shade
from plumbline_web.validations.stepdiff.names import OUTSIDE, Place, place
from plumbline_web.validations.stepdiff.tensors import Tensor
from workers.report.numbers import format_number


@dataclass(frozen=True)
class Cell:
    """One layer's tensor of a kind; `tensor` is the worst where several share the cell, as a layer's experts do."""

    tensor: Tensor
    count: int
    expert: int | None

    @property
    def shade(self) -> str:
        return shade(self.tensor.ratio, holds=self.tensor.holds)

    @property
    def text(self) -> str:
        """Two significant digits: a cell is narrow, and the whole value stands in `hover`."""
        value = self.tensor.value
        if value == 0.0 or not math.isfinite(value):
            return format_number(value)
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"

    @property
    def hover(self) -> str:
        tensor = self.tensor
        name = f"{tensor.part} of {tensor.name}" if tensor.part else tensor.name
        parts = [name, f"error {tensor.value!r}, {format_number(tensor.ratio)} × its threshold {tensor.threshold!r}"]
        if tensor.floor is not None:
            parts.append(f"noise floor {tensor.floor!r}")
        if tensor.block is not None:
            parts.append(f"worst {tensor.block_kind or 'block'}: {tensor.block}")
        if self.count > 1:
            parts.append(f"worst of {self.count} experts")
        return "\n".join(parts)


@dataclass(frozen=True)
class Row:
    title: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    group: str

    @property
    def parts(self) -> list[str]:
        """The title in pieces between which a line may break."""
        return re.split(r"(?<=_)", self.title)


@dataclass(frozen=True)
class Group:
    """A head over neighbouring columns."""

    title: str
    span: int


@dataclass(frozen=True)
class Grid:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    wrong: int
    total: int

    @property
    def groups(self) -> tuple[Group, ...]:
        runs = groupby(self.columns, key=lambda column: (column.key == OUTSIDE, column.group))
        return tuple(Group(title, len(tuple(members))) for (_, title), members in runs)


def build_grid(tensors: Iterable[Tensor]) -> Grid:
    """Lay tensors out; the order of rows and columns is the one in which the model first has them."""
    placed = [(place(tensor.name), tensor) for tensor in tensors]
    columns = _order_columns([where for where, _ in placed])
    cells: dict[str, dict[str, list[tuple[Place, Tensor]]]] = {}
    for where, tensor in placed:
        cells.setdefault(where.row, {}).setdefault(where.column, []).append((where, tensor))
    rows = tuple(
        Row(title, tuple(_merge(of_row.get(column.key, ())) for column in columns)) for title, of_row in cells.items()
    )
    return Grid(columns, rows, sum(not tensor.holds for _, tensor in placed), len(placed))


def _order_columns(places: Sequence[Place]) -> tuple[Column, ...]:
    """Columns of one group stand together, groups in the order of their first member."""
    seen = {where.column: where for where in places}
    inside = [where for where in seen.values() if where.column != OUTSIDE]
    first = {where.group: index for index, where in reversed(list(enumerate(inside)))}
    ordered = [where for where in seen.values() if where.column == OUTSIDE]
    ordered += sorted(inside, key=lambda where: first[where.group])
    return tuple(Column(where.column, where.short, where.group) for where in ordered)


def _merge(members: Sequence[tuple[Place, Tensor]]) -> Cell | None:
    if not members:
        return None
    where, worst = max(members, key=lambda member: (not member[1].holds, member[1].ratio))
    return Cell(worst, len(members), where.expert)
