"""Building an environment: resolved, made once under the key of what it holds, and gone on with after a break."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from checks.errors import BadRequest
from workers.audit.interpreters import read_interpreter
from workers.environments.importing import try_imports
from workers.environments.pip import run_pip
from workers.environments.recipes import LeftOut, find_recipe, has_gpu
from workers.environments.resolving import Wish, find_python, make_venv, read_version, resolve
from workers.environments.sharing import link_packages
from workers.environments.store import Built, Store, make_key, measure, python_of
from workers.environments.torch_builds import holds_gpu_libraries
from workers.request import Progress

MEASURE_EVERY_S = 2.0
"""Counting the files of a large environment takes a tenth of a second."""


def build(
    wish: Wish,
    *,
    name: str | None,
    python: str | None,
    index: Sequence[str],
    store: Store,
    on_progress: Callable[[Progress], None],
    upgrade: bool = False,
) -> tuple[Built, bool]:
    """Build what was asked for, unless it is there, and give it a name; whether anything was built.

    What was asked for in the same words before is there: pip is asked again only where `index`, options of pip, says
    where releases come from, where `upgrade` wants what has come out since, or where there is a GPU now. One that was
    broken off, by ctrl-C or by a cut of power, is gone on with: what is installed stays, and what was downloaded lies
    in pip's cache.

    Raises:
        BadRequest: no such Python or release, releases that do not go together, or a build that fails.
    """
    begun = time.monotonic()

    def show(phase: str, detail: str) -> None:
        on_progress(Progress(phase, detail, None, time.monotonic() - begun))

    interpreter = find_python(python)
    version = read_version(interpreter)
    recipe = find_recipe((wish.framework, *wish.others), gpu=(gpu := has_gpu()))
    for _, there in () if index or upgrade else store.find_requested(wish.texts):
        as_now = (there.python, there.left_out) == (version, recipe.left_out)
        if not as_now or (gpu and not holds_gpu_libraries(there.packages)):
            continue
        with store.hold(there.key, waiting=lambda: show("waiting", "another process has it")):
            if store.read(there.key) == there:  # and not removed meanwhile
                store.touch(there.key)
                store.name(name or wish.name, key=there.key)
                return there, False
    show("resolving", ", ".join(wish.texts))
    resolved = resolve(
        wish, recipe=recipe, python=interpreter, index=index, gpu=gpu, show=lambda line: show("resolving", line)
    )
    key = make_key(python=version, packages=resolved.packages, left_out=recipe.left_out)
    with store.hold(key, waiting=lambda: show("waiting", f"{key} is being built by another process")):
        built = store.read(key)
        fresh = built is None
        if built is None:
            built = _install(
                wish,
                key=key,
                interpreter=interpreter,
                packages=resolved.packages,
                left_out=recipe.left_out,
                index=resolved.index,
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
    shared = link_packages(folder, packages=packages, python=read_version(python_of(folder)), store=store)
    show("linking", f"{len(shared)} of {len(packages)} packages, which other environments hold")
    missing = [package for package in packages if package not in shared]
    if missing:
        run_pip(
            python_of(folder),
            ["install", "--no-deps", "--no-compile", *index, *missing],
            log=store.log(key),
            show=lambda line: show("installing", f"{size.text()}, {line}"),
        )
    show("checking", f"imports {wish.framework.name}")
    try_imports(str(python_of(folder)), wish.texts, left_out=left_out)
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


@dataclass(frozen=True)
class State:
    """How a built environment was found."""

    troubles: tuple[str, ...]
    """packages that changed or went, an import that fails; empty where all is as it was built"""
    remarks: tuple[str, ...] = ()
    """what is so by intent and a run depends on: what was left out, and is stood in for"""


def check(built: Built, *, store: Store) -> State:
    """Hold an environment against the list that it was built from, and import what it was built for."""
    python = str(python_of(store.directory(built.key)))
    try:
        installed = read_interpreter(python).packages
    except BadRequest as error:
        return State((str(error),))
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
        imported = try_imports(python, built.requested, left_out=built.left_out)
    except BadRequest as error:
        return State((*troubles, error.found))
    return State(tuple(troubles), tuple(each.sentence for each in imported if each.sentence))


def format_size(size: int) -> str:
    """Bytes as megabytes or gigabytes of 10⁶ and 10⁹."""
    return f"{size / 1e9:.2f} GB" if size >= 10**9 else f"{size / 1e6:.0f} MB"
