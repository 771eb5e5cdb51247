"""Building an environment: resolved, made once under the key of what it holds, and gone on with after a break."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from checks.errors import BadRequest
from workers.audit.interpreters import read_interpreter
from workers.environments.pip import run_pip
from workers.environments.recipes import LeftOut, find_recipe, has_gpu
from workers.environments.resolving import Wish, find_python, make_venv, read_version, resolve
from workers.environments.store import Built, Store, make_key, measure, python_of
from workers.request import Progress

MEASURE_EVERY_S = 2.0
"""Counting the files of a large environment takes a tenth of a second."""

MODULES = {
    "megatron-core": "megatron.core",
    "mcore-bridge": "mcore_bridge",
    "ms-swift": "swift",
    "nemo-automodel": "nemo_automodel",
}
"""What is imported of a distribution that is not called like its module."""


def build(
    wish: Wish,
    *,
    name: str | None,
    python: str | None,
    index: Sequence[str],
    store: Store,
    on_progress: Callable[[Progress], None],
) -> tuple[Built, bool]:
    """Build what was asked for, unless it is there, and give it a name; whether anything was built.

    `index`: options of pip that say where releases come from. One that was broken off, by ctrl-C or by a cut of power,
    is gone on with: what is installed stays, and what was downloaded lies in pip's cache.

    Raises:
        BadRequest: no such Python or release, releases that do not go together, or a build that fails.
    """
    begun = time.monotonic()

    def show(phase: str, detail: str) -> None:
        on_progress(Progress(phase, detail, None, time.monotonic() - begun))

    interpreter = find_python(python)
    version = read_version(interpreter)
    show("resolving", ", ".join(wish.texts))
    recipe = find_recipe((wish.framework, *wish.others), gpu=has_gpu())
    packages = resolve(wish, recipe=recipe, python=interpreter, index=index, show=lambda line: show("resolving", line))
    key = make_key(python=version, packages=packages, left_out=recipe.left_out)
    with store.hold(key, waiting=lambda: show("waiting", f"{key} is being built by another process")):
        built = store.read(key)
        fresh = built is None
        if built is None:
            built = _install(
                wish,
                key=key,
                interpreter=interpreter,
                packages=packages,
                left_out=recipe.left_out,
                index=index,
                store=store,
                show=show,
            )
        store.touch(key)
        store.name(name or wish.name, key=key)
    return built, fresh


def _install(
    wish: Wish,
    *,
    key: str,
    interpreter: str,
    packages: tuple[str, ...],
    left_out: tuple[LeftOut, ...],
    index: Sequence[str],
    store: Store,
    show: Callable[[str, str], None],
) -> Built:
    folder = store.directory(key)
    folder.mkdir(parents=True, exist_ok=True)
    make_venv(folder, python=interpreter)
    size = _Size(lambda: measure(folder))
    run_pip(
        python_of(folder),
        ["install", "--no-deps", "--no-compile", *index, *packages],
        log=store.log(key),
        show=lambda line: show("installing", f"{size.text()}, {line}"),
    )
    show("checking", f"imports {wish.framework.name}")
    try_import(str(python_of(folder)), wish.framework.name)
    built = Built(
        key=key,
        requested=wish.texts,
        python=read_version(python_of(folder)),
        packages=packages,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        size_bytes=measure(folder),
        left_out=left_out,
    )
    store.complete(built)
    return built


class _Size:
    """A size that is measured now and then."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._at = -MEASURE_EVERY_S
        self._bytes = 0

    def text(self) -> str:
        if time.monotonic() - self._at >= MEASURE_EVERY_S:
            self._at, self._bytes = time.monotonic(), self._read()
        return format_size(self._bytes)


def try_import(python: str, distribution: str) -> None:
    """Import a framework once, as a run would.

    Raises:
        BadRequest: it does not, with the last line of its traceback.
    """
    module = MODULES.get(distribution, distribution.replace("-", "_"))
    done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BadRequest(
            "environment",
            f"{distribution} is installed and cannot be imported: {said}",
            "add what is missing with --with",
        )


def check(built: Built, *, store: Store) -> tuple[str, ...]:
    """What is no longer as it was built: packages that changed or went, an import that fails; empty where all is."""
    python = str(python_of(store.directory(built.key)))
    try:
        installed = read_interpreter(python).packages
    except BadRequest as error:
        return (str(error),)
    troubles = []
    for package in built.packages:
        name, _, version = package.partition("==")
        if version and installed.get(name) != version:
            found = installed.get(name)
            troubles.append(f"{name} is {f'{found} now' if found else 'gone'}; {version} was installed")
    troubles += [
        f"{each.name} {installed[each.name]} is there now; it was left out"
        for each in built.left_out
        if each.name in installed
    ]
    try:
        try_import(python, parse_distribution(built.requested[0]))
    except BadRequest as error:
        troubles.append(error.found)
    return tuple(troubles)


def parse_distribution(requirement: str) -> str:
    """The name in a requirement."""
    from packaging.requirements import Requirement

    return Requirement(requirement).name


def format_size(size: int) -> str:
    """Bytes as megabytes or gigabytes of 10⁶ and 10⁹."""
    return f"{size / 1e9:.2f} GB" if size >= 10**9 else f"{size / 1e6:.0f} MB"
