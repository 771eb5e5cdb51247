"""plotly.js as the plotly wheel carries it, served as a static file like any other."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PREFIX = "plotly"
"""Folder under the static address."""

FILE = "plotly.min.js"

_STYLE_ID = re.compile(r'getElementById\("([0-9a-f]{64})"\)')


def package_data() -> Path:
    """Directory of the wheel that holds plotly.min.js; the package itself is not imported.

    Raises:
        ModuleNotFoundError: when plotly is not installed.
    """
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("plotly is not installed; install it with: pip install plotly")
    return Path(spec.submodule_search_locations[0]) / "package_data"


@cache
def style_ids() -> tuple[str, ...]:
    """Ids of the elements by which plotly.js knows that a style sheet of its own is already there.

    A strict content security policy refuses the sheets that it would write; charts.js makes elements with these ids,
    and charts.css holds the rules. One is Plotly's own name, the others are digests of bundled libraries' sheets.
    """
    text = (package_data() / FILE).read_text(encoding="utf-8")
    return ("plotly.js-style-global", *sorted(set(_STYLE_ID.findall(text))))
