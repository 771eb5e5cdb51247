"""From what is asked for to the list of releases that pip would install, before anything is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from checks.errors import BadRequest
from workers.environments.pip import run_pip
from workers.environments.recipes import Recipe
from workers.environments.store import python_of
from workers.environments.torch_builds import find_cpu_builds, is_for_gpu


@dataclass(frozen=True)
class Resolved:
    """What pip would install, and where it finds it."""

    packages: tuple[str, ...]
    """`name==version`, or `name @ url` where it is no release; sorted"""
    index: tuple[str, ...]
    """options of pip"""


@dataclass(frozen=True)
class Wish:
    """An environment as someone asked for it."""

    framework: Requirement
    others: tuple[Requirement, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(str(requirement) for requirement in (self.framework, *self.others))

    @property
    def name(self) -> str:
        """A name that says the framework's release, and what was asked for beside it."""
        parts = [f"{each.name}-{''.join(spec.version for spec in each.specifier)}" for each in (self.framework,)]
        parts += [f"{each.name}-{''.join(str(spec).lstrip('=') for spec in each.specifier)}" for each in self.others]
        return re.sub(r"[^A-Za-z0-9._+-]", "-", "+".join(parts))[:80]


def parse_wish(framework: str, others: Sequence[str]) -> Wish:
    """Read requirements as pip writes them.

    Raises:
        BadRequest: one that is none, or a framework that is not one release.
    """
    first = _parse("framework", framework)
    pinned = [spec.version for spec in first.specifier if spec.operator == "==" and not spec.version.endswith("*")]
    if first.url is None and (len(pinned) != 1 or len(first.specifier) != 1):
        found = f"{framework!r} is not one release"
        raise BadRequest("framework", found, f"name it as {first.name}==VERSION")
    return Wish(first, tuple(_parse("with", text) for text in others))


def _parse(field: str, text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise BadRequest(field, f"{text!r} is not a requirement ({reason})", "write NAME==VERSION") from None


def find_python(version: str | None) -> str:
    """The path of a Python of a version such as 3.11; this one's for None.

    Raises:
        BadRequest: none is on the path, or it cannot make environments.
    """
    import shutil

    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version in (None, here):
        return str(Path(sys.executable))
    if not re.fullmatch(r"3\.\d{1,2}", str(version)):
        raise BadRequest("python", f"{version!r} is not a version of Python", f"write it as {here}")
    found = shutil.which(f"python{version}")
    if found is None:
        raise BadRequest("python", f"there is no python{version} on the path", "install it, or leave --python out")
    return found


def read_version(python: str | Path) -> str:
    """The full version of an interpreter.

    Raises:
        BadRequest: it does not run.
    """
    command = [str(python), "-I", "-c", "import platform; print(platform.python_version())"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadRequest("python", f"{python} does not run ({error})", "name a Python that does") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        # A traceback ends with its reason; what a shell's or a version manager's message begins with is its.
        said = lines[-1 if lines[0].startswith("Traceback") else 0].strip()
        raise BadRequest("python", f"{python} does not run ({said})", "name a Python that does")
    return done.stdout.strip()


def resolve(
    wish: Wish, *, recipe: Recipe, python: str, index: Sequence[str], gpu: bool, show: Callable[[str], None]
) -> Resolved:
    """What pip would install on a bare Python; without a GPU, a CPU build of torch where one goes with the rest.

    With a recipe that leaves something out, the distributions it names `alone` are looked up by themselves, and what
    they require beside what is left out is resolved as usual.

    Raises:
        BadRequest: pip finds no such releases, or they do not go together; its own line says which.
    """
    with tempfile.TemporaryDirectory(prefix="plumbline-environment-") as scratch:
        bare = Path(scratch) / "bare"
        make_venv(bare, python=python)
        report, log = Path(scratch) / "report.json", Path(scratch) / "log"

        def run(arguments: Sequence[str]) -> str:
            log.write_text("")
            run_pip(python_of(bare), arguments, log=log, show=show)
            return log.read_text(encoding="utf-8")

        def ask(*arguments: str) -> list[dict[str, Any]]:
            run(["install", "--dry-run", "--ignore-installed", "--report", str(report), *index, *arguments])
            installed: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
            return installed

        wanted = [*wish.texts, *recipe.requires]
        alone = []
        left_out = {each.name for each in recipe.left_out}
        queue = [text for text in wanted if canonicalize_name(Requirement(text).name) in recipe.alone]
        wanted = [text for text in wanted if text not in queue]
        markers = {"python_full_version": (full := read_version(python)), "python_version": full.rpartition(".")[0]}
        while queue:
            found = ask("--no-deps", *queue)
            alone += found
            done = {canonicalize_name(str(each["metadata"]["name"])) for each in alone}
            queue = []
            for need in _read_needs(found, markers=markers):
                name = canonicalize_name(need.name)
                if name not in left_out and name not in done:
                    (queue if name in recipe.alone else wanted).append(str(need))
        resolved = ask(*wanted) if wanted else []
        more: list[str] = []
        torch = next((each for each in resolved if is_for_gpu(each)), None)
        if torch is not None and not gpu:
            for build, where in find_cpu_builds(str(torch["metadata"]["version"]), index=index, run=run):
                try:
                    resolved, more = ask(*where, *wanted, f"torch=={build}"), where
                    break
                except BadRequest:  # this build does not go with the rest
                    continue
    pins = {canonicalize_name(str(each["metadata"]["name"])): _pin(each) for each in (*resolved, *alone)}
    packages = tuple(sorted(pin for name, pin in pins.items() if name not in left_out))
    return Resolved(packages, (*index, *more))


def _read_needs(installed: Sequence[dict[str, Any]], *, markers: dict[str, str]) -> Iterator[Requirement]:
    """What distributions of pip's report require here, without their extras."""
    for each in installed:
        for text in each["metadata"].get("requires_dist", ()):
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({**markers, "extra": ""}):
                need.marker = None
                yield need


def _pin(installed: dict[str, Any]) -> str:
    metadata = installed["metadata"]
    name = canonicalize_name(str(metadata["name"]))
    if installed.get("is_direct"):
        return f"{name} @ {installed['download_info']['url']}"
    return f"{name}=={metadata['version']}"


def make_venv(directory: Path, *, python: str) -> None:
    """A virtual environment with nothing in it; one that is there already is left as it is.

    Raises:
        BadRequest: this Python cannot make one.
    """
    command = [python, "-m", "venv", "--without-pip", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise BadRequest("python", f"{python} makes no environment ({said[-1] if said else 'it said nothing'})",
                         "install its venv module")  # fmt: skip
