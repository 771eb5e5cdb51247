"""What `plumbline audit` does: read the releases, compare, write the files, print the table."""

from __future__ import annotations

from pathlib import Path

from checks.catalogue.problem import load_problems
from checks.errors import BadRequest
from workers.audit.as_json import render_json
from workers.audit.audit import audit
from workers.audit.files import FIELD, read_text
from workers.audit.interpreters import read_interpreter
from workers.audit.inventory import Inventory
from workers.audit.locks import is_lock, read_lock
from workers.audit.requirements import read_requirements
from workers.audit.sarif import render_sarif
from workers.audit.table import print_audit
from workers.report.console import make_console
from workers.report.files import check_writable, write_whole


def run_audit(*, python: str | None, requirements: Path | None, json_file: Path | None, sarif_file: Path | None) -> int:
    """Audit an interpreter (this one by default) or a file; 1 where a release has a silent known problem, else 0.

    Raises:
        BadRequest: an interpreter or file that cannot be read, or a file that cannot be written.
    """
    for field, file in (("json", json_file), ("sarif", sarif_file)):
        if file is not None:
            check_writable(file, field=field)
    inventory = read_interpreter(python) if requirements is None else read_pins(requirements)
    result = audit(inventory, load_problems())
    if json_file is not None:
        write_whole(json_file, render_json(result))
    if sarif_file is not None:
        write_whole(sarif_file, render_sarif(result))
    print_audit(result, console=make_console())
    return result.exit_code


def read_pins(file: Path) -> Inventory:
    """The pins of a requirements file, of `pip freeze` output, or of a lock file in TOML.

    Raises:
        BadRequest: the file cannot be read, or holds no exact pin.
    """
    text = read_text(file)
    if text.lstrip().startswith(("{", "<")):
        raise BadRequest(FIELD, f"{file} is JSON or XML", "give the output of `pip freeze`")
    return read_lock(file, text) if is_lock(text) else read_requirements(file, text)
