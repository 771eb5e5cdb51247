"""The address that opens an issue with title and text filled in."""

from __future__ import annotations

from urllib.parse import urlencode

LONGEST = 8_000
"""characters of an address; GitHub answers 414 to one that is somewhat longer"""

NOTE = (
    "\n\n_Shortened: the whole report, its script and its data are in the attached files._\n"
    "_Attach report.md, reproduce.py, output.txt, plot.png and data.csv before submitting._"
)
FIELDS = {"github": ("issues/new", "title", "body"), "gitlab": ("-/issues/new", "issue[title]", "issue[description]")}
"""https://docs.github.com/en/issues/tracking-your-work-with-issues/creating-an-issue#creating-an-issue-from-a-url-query
and https://docs.gitlab.com/user/project/issues/create_issues/#using-a-url-with-prefilled-values"""


def build_issue_url(project: str, *, service: str, title: str, body: str) -> str:
    """The address of a new issue, of less than 8,000 characters whatever the text; empty for a tracker without one."""
    if service not in FIELDS or not project:
        return ""
    page, title_field, body_field = FIELDS[service]

    def address(text: str) -> str:
        return f"{project.rstrip('/')}/{page}?{urlencode({title_field: title[:200], body_field: text})}"

    whole = address(body)
    if len(whole) < LONGEST:
        return whole
    lines = body.splitlines()
    low, high = 0, len(lines)  # the most lines that fit with the note
    while low < high:
        middle = (low + high + 1) // 2
        if len(address(_shorten(lines[:middle]))) < LONGEST:
            low = middle
        else:
            high = middle - 1
    return address(_shorten(lines[:low]))


def _shorten(lines: list[str]) -> str:
    """The lines, a fence that they leave open closed, and the note."""
    fences = sum(line.lstrip().startswith("```") for line in lines)
    return "\n".join([*lines, "```"] if fences % 2 else lines) + NOTE
