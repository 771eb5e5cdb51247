"""What a verdict's evidence shows as pictures: curves, and the tokens of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plumbline_web.curves.charts import LINEAR, LOG, Axis, Chart, Style, Trace

PLOTS, ROWS = "plots", "rows"
STYLES: Mapping[str, Style] = {"line": "line", "points": "points", "threshold": "threshold", "floor": "floor"}


@dataclass(frozen=True)
class Picture:
    """A chart, and the table behind it: one row an x, one column a curve."""

    chart: Chart
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Token:
    """One token of a row: what it says, and how it stands to what it should be (the name of a style)."""

    text: str
    standing: str
    title: str


@dataclass(frozen=True)
class Strip:
    """A line of tokens."""

    label: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class TokenRow:
    """A wrong row: where it is, which sample it should be, and its tokens around the first difference."""

    title: str
    detail: str
    strips: tuple[Strip, ...]


def read_pictures(evidence: Mapping[str, Any]) -> tuple[Picture, ...]:
    """The plots that a judge described with `checks.plot`."""
    return tuple(_read_picture(plot) for plot in evidence.get(PLOTS) or ())


def _read_picture(plot: Mapping[str, Any]) -> Picture:
    traces = tuple(
        Trace(
            curve["name"],
            curve["x"],
            [float("nan") if value is None else value for value in curve["y"]],
            style=STYLES.get(curve["style"], "line"),
            colour=number,
            text=tuple(f"{plot['x']} {x:g}" for x in curve["x"]),
        )
        for number, curve in enumerate(plot["curves"])
    )
    scale = LOG if plot["scale"] == "log" else LINEAR
    chart = Chart(label=plot["title"], x=Axis(plot["x"]), y=Axis(plot["y"], scale), traces=traces)
    values = [dict(zip(curve["x"], curve["y"], strict=True)) for curve in plot["curves"]]
    places = sorted({x for curve in plot["curves"] for x in curve["x"]})
    columns = (plot["x"], *(curve["name"] for curve in plot["curves"]))
    return Picture(chart, columns, tuple((x, *(value.get(x) for value in values)) for x in places))


def read_token_rows(evidence: Mapping[str, Any]) -> tuple[TokenRow, ...]:
    """The rows of data.mask (a token: text, trained, expected) and of data.template (what was seen and expected)."""
    rows = evidence.get(ROWS) or ()
    return tuple(
        TokenRow(_title(row), row.get("detail") or "", tuple(_strips(row)))
        for row in rows
        if isinstance(row, Mapping) and ("tokens" in row or "seen" in row)
    )


def is_picture(name: str, value: Any) -> bool:
    """Whether a piece of evidence is shown as a picture and needs no text."""
    return name == PLOTS or (name == ROWS and bool(read_token_rows({ROWS: value})))


def _title(row: Mapping[str, Any]) -> str:
    sample = f", {row['sample']}" if row.get("sample") else ""
    return f"{row['place']}{sample}: from token {row['from']}, first difference at {row['first_difference']}"


def _strips(row: Mapping[str, Any]) -> Iterator[Strip]:
    if "tokens" in row:
        yield Strip("labels", tuple(_read_label(*token) for token in row["tokens"]))
        return
    first = row["first_difference"] - row["from"]
    for name in ("seen", "expected"):
        yield Strip(name, tuple(_read_text(text, place, first) for place, text in enumerate(row[name])))


STANDINGS: Mapping[tuple[bool, bool], tuple[str, str]] = {
    (True, True): ("trained", "trained, as it should be"),
    (False, False): ("masked", "not trained, as it should be"),
    (True, False): ("extra", "trained, and should not be"),
    (False, True): ("lost", "not trained, and should be"),
}
"""(trained, expected) → the style of the token, and what it says on hover"""


def _read_label(text: str, trained: bool, expected: bool | None) -> Token:
    if expected is None:
        return Token(text, "open", f"{'trained' if trained else 'not trained'}; either is right")
    return Token(text, *STANDINGS[bool(trained), expected])


def _read_text(text: str, place: int, first: int) -> Token:
    return Token(text, "extra" if place == first else "masked", "the first that differs" if place == first else "")


FIRST = ("slug", "title", "package", "version", "status", "silent", "run", "fixed_in")
LAST = ("source", "url")
"""Columns of evidence that come first and last; others stand between, by name."""


def _say(value: Any) -> Any:
    """Six digits of a float tell two rows apart; the JSON has them all."""
    if isinstance(value, bool):
        return {True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else value


def _place(column: str) -> int:
    if column in FIRST:
        return FIRST.index(column)
    return len(FIRST) + (1 + LAST.index(column) if column in LAST else 0)


def describe_records(value: Any) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]] | None:
    """Columns and rows of evidence that is a list of records with short values; None for any other."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return None
    if not all(isinstance(each, Mapping) for each in value):
        return None
    # PostgreSQL keeps no order of an object's keys.
    columns = tuple(sorted(value[0], key=lambda name: (_place(name), name)))
    for each in value:
        if tuple(sorted(each)) != tuple(sorted(columns)):
            return None
        if not all(v is None or isinstance(v, (str, bool, int, float)) for v in each.values()):
            return None
    return columns, tuple(tuple(_say(each[column]) for column in columns) for each in value)
