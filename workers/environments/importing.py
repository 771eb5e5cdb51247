"""Whether what an environment was built for can be imported there, and what of it only a stand-in provides."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import plumbline_capture
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from checks.errors import BadRequest
from workers.environments.recipes import LeftOut
from workers.frameworks.shims import VARIABLE, find_shims

MODULES = {
    "megatron-core": "megatron.core",
    "mcore-bridge": "mcore_bridge",
    "ms-swift": "swift",
    "nemo-automodel": "nemo_automodel",
}
"""What is imported of a distribution that is not called like its module."""

_MISSING = re.compile(r"No module named '(?P<module>\w+)")

_SCRIPT = """
import importlib, json, runpy, sys
capture, shims, module = json.loads(sys.argv[1])
sys.path[:0] = [capture] if shims else []
for shim in shims:
    runpy.run_path(shim)["install"]()
importlib.import_module(module)
"""
"""imports a module after the stand-ins, as the recorder runs them before a framework's own code"""


@dataclass(frozen=True)
class Imported:
    """How a distribution was imported."""

    distribution: str
    stand_ins: tuple[str, ...] = ()
    """the code that stand-ins replaced in it"""
    lacks: LeftOut | None = None
    """what it was not imported for want of: left out on purpose"""

    @property
    def sentence(self) -> str:
        """What a person should know of it; empty where it was imported as it is."""
        if self.lacks is not None:
            return (
                f"{self.distribution} does not import without {self.lacks.name}, which was left out "
                f"({self.lacks.reason}): on this machine it runs only on a stand-in that {VARIABLE} names"
            )
        if self.stand_ins:
            return (
                f"{self.distribution} imports on the stand-in for {', '.join(self.stand_ins)}, as {VARIABLE} names it"
            )
        return ""


def try_imports(python: str, requested: Sequence[str], *, left_out: Sequence[LeftOut]) -> tuple[Imported, ...]:
    """Import each framework of what was asked for once, as a run would: the first requirement, and others by name.

    The variable's stand-ins run before it where importing it as it is ends at something that was left out.

    Raises:
        BadRequest: one of them does not import for another reason, with the last line of its traceback.
    """
    names = [canonicalize_name(Requirement(text).name) for text in requested]
    wanted = [name for index, name in enumerate(names) if index == 0 or name in MODULES]
    return tuple(_try_import(python, name, left_out=left_out) for name in wanted)


def _try_import(python: str, distribution: str, *, left_out: Sequence[LeftOut]) -> Imported:
    said = _import(python, distribution, shims=())
    if said is None:
        return Imported(distribution)
    lacks = _find_left_out(said, left_out)
    if lacks is None:
        raise _refuse(distribution, said)
    shims = find_shims()
    if not shims:
        return Imported(distribution, lacks=lacks)
    said = _import(python, distribution, shims=[str(shim.file) for shim in shims])
    if said is not None:
        if (lacks := _find_left_out(said, left_out)) is not None:
            return Imported(distribution, lacks=lacks)
        raise _refuse(distribution, said)
    return Imported(distribution, stand_ins=tuple(dict.fromkeys(name for shim in shims for name in shim.replaces)))


def _import(python: str, distribution: str, *, shims: Sequence[str]) -> str | None:
    """The last line of the traceback; None where it imports."""
    module = MODULES.get(distribution, distribution.replace("-", "_"))
    capture = str(Path(plumbline_capture.__file__).parents[1])
    command = [python, "-c", _SCRIPT, json.dumps([capture, list(shims), module])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr.strip().splitlines() or ["it said nothing"])[-1] if done.returncode else None


def _find_left_out(said: str, left_out: Sequence[LeftOut]) -> LeftOut | None:
    found = _MISSING.search(said)
    return next((each for each in left_out if found and each.name.replace("-", "_") == found["module"]), None)


def _refuse(distribution: str, said: str) -> BadRequest:
    found = f"{distribution} is installed and cannot be imported: {said}"
    return BadRequest("environment", found, "add what is missing with --with")
