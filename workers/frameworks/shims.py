"""Stand-ins for code that a machine lacks, preloaded into the framework's process: for this project's own tests.

`PLUMBLINE_SHIMS=a.py:b.py` names files that the recorder runs as it runs faults, and before them. Each states, as a
literal `REPLACES`, the code that it stands in for; the capture records that, and every verdict of such a run says so.
One that states a literal `FRAMEWORKS` is run in these alone.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from checks.errors import BadRequest
from checks.faults import fault
from checks.verdict import Status, Verdict

if TYPE_CHECKING:
    from checks.captures.capture import StandIn  # loads torch

VARIABLE = "PLUMBLINE_SHIMS"


@dataclass(frozen=True)
class Shim:
    """A file with `install()`, and the code that it replaces."""

    file: Path
    replaces: tuple[str, ...]
    frameworks: tuple[str, ...] = ()
    """those that it serves; all where it states none"""


def find_shims(framework: str | None = None) -> tuple[Shim, ...]:
    """The files that the variable names, in its order, that serve a framework, or any; none where it is unset.

    Raises:
        BadRequest: a file that is not there, or that does not state what it replaces.
    """
    named = os.environ.get(VARIABLE, "")
    shims = [_read(Path(text).resolve()) for text in named.split(os.pathsep) if text]
    return tuple(shim for shim in shims if framework in (None, *shim.frameworks) or not shim.frameworks)


def list_preload(framework: str, *, fault_slug: str | None) -> tuple[Path, ...]:
    """What runs in a framework's process before its own code: its stand-ins, then the fault of that slug."""
    faults = (fault(fault_slug).file,) if fault_slug else ()
    return (*(shim.file for shim in find_shims(framework)), *faults)


def _read(file: Path) -> Shim:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise BadRequest(VARIABLE, f"{file} cannot be read ({error})", "name Python files, or unset it") from None
    if not (replaces := _read_literal(tree, "REPLACES")):
        found = f"{file.name} does not say what it replaces"
        raise BadRequest(VARIABLE, found, "give it a literal REPLACES = (…) of the modules that it stands in for")
    return Shim(file, replaces, _read_literal(tree, "FRAMEWORKS"))


def _read_literal(tree: ast.Module, name: str) -> tuple[str, ...]:
    """The texts that a module's variable is given as a literal; none where it is not."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        if named and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            try:
                return tuple(str(each) for each in ast.literal_eval(node.value))
            except ValueError:
                return ()
    return ()


def name_stand_ins(verdict: Verdict, stand_ins: tuple[StandIn, ...]) -> Verdict:
    """The verdict with the code that the run's stand-ins replaced, about which it says nothing."""
    if not stand_ins or verdict.status is Status.SKIPPED:
        return verdict
    replaced = ", ".join(dict.fromkeys(name for each in stand_ins for name in each.replaces))
    sentence = f"{verdict.sentence.rstrip('.')} (ran on tests' stand-in for {replaced}: says nothing about that code)"
    evidence = {**verdict.evidence, "stand_ins": [{"name": e.name, "replaces": list(e.replaces)} for e in stand_ins]}
    return replace(verdict, sentence=sentence, evidence=evidence)
