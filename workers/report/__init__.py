"""A validation's result for people (table), for programs (JSON) and for a CI server (JUnit XML)."""

from __future__ import annotations

from workers.report.as_json import build_document, render_json
from workers.report.console import make_console
from workers.report.files import check_writable, write_whole
from workers.report.junit import render_junit
from workers.report.progress import ProgressLine
from workers.report.table import print_result

__all__ = [
    "ProgressLine",
    "build_document",
    "check_writable",
    "make_console",
    "print_result",
    "render_json",
    "render_junit",
    "write_whole",
]
