"""Reports that are kept as files: `python -m plumbline_web.reports.written FOLDER …` writes each one's report.md.

A folder holds report.toml (what is said), reproduce.py, and output.txt, what it printed. No database is asked.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from plumbline_web.reports.content import Content, write_body
from plumbline_web.reports.redaction import Private, Redactor
from plumbline_web.reports.rendering import Rendered, Source, list_files, render
from plumbline_web.reports.trackers import TRACKERS

TEXTS = ("title", "summary", "expected", "observed", "cause", "context", "limits")


def render_folder(folder: Path) -> Rendered:
    """The report of a folder. Raises ValueError for a field that is missing, unknown or no text."""
    values = tomllib.loads((folder / "report.toml").read_text(encoding="utf-8"))
    unlike = {*TEXTS, "tracker"} ^ (set(values) - {"versions"})
    if unlike or not all(isinstance(values[name], str) for name in TEXTS):
        raise ValueError(
            f"{folder / 'report.toml'}: {', '.join(sorted(unlike)) or 'a text'} is missing, or none of its fields"
        )
    content = Content(**{name: values[name].strip() for name in TEXTS})
    output = (folder / "output.txt").read_text(encoding="utf-8")
    source = Source(
        title=content.title,
        body=write_body(content, TRACKERS[values["tracker"]].sections),
        script=(folder / "reproduce.py").read_text(encoding="utf-8"),
        output=output,
        versions={**read_versions(output), **values.get("versions", {})},
    )
    return render(source, Redactor(Private()))


def read_versions(output: str) -> Mapping[str, str]:
    """From a script's first line, such as "transformers 5.24.0, torch 2.13.0, python 3.11.7"."""
    pairs = (part.split() for part in output.splitlines()[0].split(","))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def main(folders: Sequence[str]) -> int:
    for folder in map(Path, folders):
        (folder / "report.md").write_bytes(list_files(render_folder(folder))["report.md"])
        print(folder / "report.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
