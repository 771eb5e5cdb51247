"""`plumbline shrink`: a small checkpoint of a config, and a table of what became of each of its settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from checks.errors import BadRequest
from workers.report import make_console
from workers.report.console import clean_text

COLUMNS = ("setting", "", "from", "to", "why")
STYLES = {"kept": "cyan", "shrunk": "", "dropped": "yellow"}
LONGEST_VALUE = 40


def run_shrink(config: str, *, out: Path) -> int:
    """Shrink `config`, write the checkpoint into `out` with shrunk.json beside it, print the table; 0.

    Raises BadRequest naming what cannot be shrunk, or a directory that cannot be written.
    """
    # Imported late: it takes seconds.
    from checks.models.shrunk import plan_small, write_small

    small = plan_small(config)
    try:
        write_small(small, out)
    except OSError as error:
        raise BadRequest("out", f"{out} cannot be written ({error.strerror or error})", "give another") from None
    console = make_console()
    console.print(Text(f"{small.family} · {small.parameters:,} parameters · {out}", style="bold"))
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for change in small.shrunk.changes:
        cells = (change.name, change.action, show_value(change.before), show_value(change.after), change.why)
        table.add_row(*(Text(clean_text(cell)) for cell in cells), style=STYLES[change.action])
    console.print(table)
    return 0


def show_value(value: Any) -> str:
    """A setting in one line, its middle left out where it is long."""
    text = json.dumps(value, default=str)
    half = LONGEST_VALUE // 2
    return text if len(text) <= LONGEST_VALUE else f"{text[:half]} … {text[-half:]}"
