"""A report as it leaves the house: marks replaced, private names taken out, files put together. Pure."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from plumbline_web.reports.content import OUTPUT, PLOT, SCRIPT, VERSIONS
from plumbline_web.reports.figure import Figure, draw_png, write_csv
from plumbline_web.reports.redaction import Redactor

NO_SCRIPT = "_This report has no reproducer yet._"
NO_OUTPUT = "_The script was not run yet._"
NO_VERSIONS = "_The versions are known when the script was run._"

MOST_OUTPUT_LINES = 60
"""Lines of the output in the text; output.txt has all."""

FIXED_DATE = (1980, 1, 1, 0, 0, 0)
"""of the files in the ZIP: the same report gives the same bytes"""


@dataclass(frozen=True)
class Source:
    """A report as it is kept, with the run that its output is of."""

    title: str
    body: str
    script: str
    output: str
    versions: Mapping[str, str]
    figure: Figure | None = None


@dataclass(frozen=True)
class Rendered:
    """What is sent: nothing in it names this house, unless it was ticked. `removed`: kind → how often."""

    title: str
    markdown: str
    script: str
    output: str
    figure: Figure | None
    removed: Mapping[str, int] = field(default_factory=dict)


def render(source: Source, redactor: Redactor) -> Rendered:
    """The report with its script and output in place, cleaned part by part."""
    script, output = redactor.clean(source.script), redactor.clean(source.output)
    figure = source.figure and _clean_figure(source.figure, redactor)
    body = redactor.clean(source.body)
    marks = {
        SCRIPT: fence(script, "python") if script.strip() else NO_SCRIPT,
        OUTPUT: fence(_shorten(output), "text") if output.strip() else NO_OUTPUT,
        VERSIONS: write_versions(source.versions) or NO_VERSIONS,
        PLOT: f"![{figure.title}](plot.png)\n\nThe numbers behind it are in data.csv." if figure else "",
    }
    pattern = re.compile("|".join(re.escape(mark) for mark in marks))
    markdown = pattern.sub(lambda match: marks[match.group()], body)
    return Rendered(
        title=redactor.clean(source.title),
        markdown=markdown.rstrip() + "\n",
        script=script,
        output=output,
        figure=figure,
        removed=dict(redactor.removed),
    )


def write_versions(versions: Mapping[str, str]) -> str:
    """A list of packages with their versions, Python first and else in their order."""
    names = sorted(versions, key=lambda name: name != "python")
    return "\n".join(f"- {name} {versions[name]}" for name in names)


def fence(text: str, language: str) -> str:
    """A block of code whose fence is longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{text.rstrip()}\n{marks}"


def _shorten(output: str) -> str:
    lines = output.strip("\n").splitlines()
    if len(lines) <= MOST_OUTPUT_LINES:
        return "\n".join(lines)
    left = len(lines) - MOST_OUTPUT_LINES
    return "\n".join([f"… {left} earlier lines are in output.txt", *lines[-MOST_OUTPUT_LINES:]])


def _clean_figure(figure: Figure, redactor: Redactor) -> Figure:
    return replace(
        figure,
        title=redactor.clean(figure.title),
        x_title=redactor.clean(figure.x_title),
        y_title=redactor.clean(figure.y_title),
        x=tuple(redactor.clean(x) if isinstance(x, str) else x for x in figure.x),
        series=tuple(replace(each, name=redactor.clean(each.name)) for each in figure.series),
    )


def list_files(rendered: Rendered, *, notice: str = "") -> dict[str, bytes]:
    """The files of a report by name; `notice`: a line above the text."""
    text = f"{notice}\n\n" if notice else ""
    files = {"report.md": f"# {rendered.title}\n\n{text}{rendered.markdown}".encode()}
    if rendered.script.strip():
        files["reproduce.py"] = rendered.script.encode()
    if rendered.output.strip():
        files["output.txt"] = rendered.output.encode()
    if rendered.figure is not None:
        files["plot.png"] = draw_png(rendered.figure)
        files["data.csv"] = write_csv(rendered.figure).encode()
    return files


def pack(files: Mapping[str, bytes]) -> bytes:
    """The files as a ZIP; equal files give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, FIXED_DATE), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
