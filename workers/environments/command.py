"""`plumbline env`: create, add, list, check, remove."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from checks.errors import BadRequest
from workers.environments.building import State, build, check, format_size
from workers.environments.containers import read_image
from workers.environments.recipes import has_gpu
from workers.environments.resolving import parse_wish, read_version
from workers.environments.store import Built, Named, Store, check_name
from workers.environments.torch_builds import holds_gpu_libraries
from workers.option_types import parse_not_negative
from workers.report import ProgressLine, make_console

if TYPE_CHECKING:
    from workers.cli import Subcommands

DAY_S = 86_400.0

FAILED = 1
"""exit code of `env check` where something is not as it was built"""


def add_env(commands: Subcommands) -> None:
    """Add `env`."""
    parser = commands.add_parser("env", help="environments of frameworks: build, name, check, remove")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser("create", help="build an environment for one release of a framework")
    create.add_argument("framework", metavar="NAME==VERSION", help="the framework's release")
    create.add_argument("--with", action="append", default=[], metavar="REQUIREMENT", dest="others", help="repeatable")
    create.add_argument("--python", metavar="3.x", help="version of Python (default: this one's)")
    create.add_argument("--name", help="what to call it (default: after its releases)")
    create.add_argument("--index-url", metavar="URL", help="where releases come from, as pip has it")
    create.add_argument(
        "--extra-index-url", action="append", default=[], metavar="URL", help="such as PyTorch's index of CPU builds"
    )
    create.add_argument(
        "--upgrade", action="store_true", help="ask pip again where there is one of the same words: releases come out"
    )
    create.set_defaults(run=_create)
    add = actions.add_parser("add", help="name a Python, or an image, that has the frameworks already")
    add.add_argument("name", metavar="NAME")
    what = add.add_mutually_exclusive_group(required=True)
    what.add_argument("--python", type=Path, metavar="PATH", help="its interpreter")
    what.add_argument("--container", metavar="IMAGE", help="an image of docker or podman")
    add.set_defaults(run=_add)
    actions.add_parser("list", help="list the environments").set_defaults(run=lambda options: _list())
    looked_at = actions.add_parser("check", help="say whether environments are as they were built")
    looked_at.add_argument("names", nargs="*", metavar="NAME", help="all by default")
    looked_at.set_defaults(run=_check)
    remove = actions.add_parser("remove", help="forget names, and remove what no name means any more")
    remove.add_argument("names", nargs="*", metavar="NAME")
    remove.add_argument(
        "--unused-for", type=parse_not_negative, metavar="DAYS", help="also those that no run has used for so long"
    )
    remove.set_defaults(run=_remove)


def _create(options: argparse.Namespace) -> int:
    if options.name is not None:
        check_name(options.name)
    wish = parse_wish(options.framework, options.others)
    index = [] if options.index_url is None else ["--index-url", options.index_url]
    for url in options.extra_index_url:
        index += ["--extra-index-url", url]
    store, name = Store(), options.name or wish.name
    before = _describe_meaning(name, store)
    begun = time.monotonic()
    with ProgressLine(make_console(stderr=True)) as line:
        built, fresh = build(
            wish,
            name=options.name,
            python=options.python,
            index=index,
            store=store,
            on_progress=line.show,
            upgrade=options.upgrade,
        )
    built_on = datetime.fromisoformat(built.created).strftime("%Y-%m-%d")
    how = f"built in {time.monotonic() - begun:.0f} s" if fresh else f"was there already, since {built_on}"
    print(f"{name}: {how}, {len(built.packages)} packages, {format_size(built.size_bytes)}")
    for said in (*_describe_left_out(built), *_describe_change(name, before, store)):
        print(said)
    if holds_gpu_libraries(built.packages) and not has_gpu():
        print(
            "torch is its build for a GPU, which this machine does not have: pip found no CPU build that goes with the "
            "rest; --extra-index-url names an index that has one"
        )
    return 0


def _describe_left_out(built: Built) -> list[str]:
    return [f"without {each.name}: {each.reason}" for each in built.left_out]


def _add(options: argparse.Namespace) -> int:
    check_name(options.name)
    store = Store()
    before = _describe_meaning(options.name, store)
    if options.container is not None:
        version = read_image(options.container)
        store.name(options.name, image=options.container)
        print(f"{options.name}: Python {version} in {options.container}")
    else:
        python = options.python.expanduser().absolute()  # not resolved: a venv's Python is a link
        version = read_version(python)
        store.name(options.name, python=python)
        print(f"{options.name}: Python {version} at {python}")
    for said in _describe_change(options.name, before, store):
        print(said)
    return 0


def _describe_meaning(name: str, store: Store) -> str:
    """What a name means, in a few words; empty where it means nothing, or nothing that is there."""
    if name not in store.list_names():
        return ""
    try:
        named = store.find(name)
    except BadRequest:
        return ""
    if named.image is not None:
        return f"container {named.image}"
    if named.built is None:
        return f"the Python at {named.python}"
    return f"{', '.join(named.built.requested)} ({named.built.key})"


def _describe_change(name: str, before: str, store: Store) -> list[str]:
    """What the name meant before, where that was something else."""
    return [f"{name} meant {before} before"] if before not in ("", _describe_meaning(name, store)) else []


def _list() -> int:
    store, console = Store(), make_console(soft_wrap=True)
    if not store.list_names():
        console.print("No environments yet; plumbline env create makes one.")
    for name in store.list_names():
        try:
            said = _describe(store.find(name), store)
        except BadRequest as error:
            said = [error.found]
        console.print(Text(name, style="bold"))
        for line in said:
            console.print(Text(f"  {line}"))
    half = [key for key in store.list_keys() if store.read(key) is None]
    if half:
        console.print(Text(f"begun and not ended: {', '.join(half)}; the same create goes on, remove deletes them"))
    return 0


def _describe(named: Named, store: Store) -> list[str]:
    built = named.built
    if named.image is not None:
        return [f"container {named.image}"]
    if built is None:
        return [f"{named.python}, not built here"]
    used = datetime.fromtimestamp(store.last_used(built.key), UTC).strftime("%Y-%m-%d %H:%M UTC")
    size = format_size(built.size_bytes)
    return [
        f"{', '.join(built.requested)}",
        f"{built.key}, Python {built.python}, {len(built.packages)} packages, {size}, last used {used}",
        *_describe_left_out(built),
    ]


def _check(options: argparse.Namespace) -> int:
    store = Store()
    code = 0
    for name in options.names or store.list_names():
        named = store.find(name)
        state = State(())
        if named.built is not None:
            state = check(named.built, store=store)
        else:
            try:
                read_version(named.python) if named.image is None else read_image(named.image)
            except BadRequest as error:
                state = State((error.found,))
        code = FAILED if state.troubles else code
        print(f"{name}: {'; '.join(state.troubles) or ('as it was built' if named.built else 'runs')}")
        for remark in state.remarks:
            print(f"  {remark}")
    return code


def _remove(options: argparse.Namespace) -> int:
    store = Store()
    known = store.list_names()
    for name in options.names:
        if name not in known:
            store.find(name)  # says which there are
    for name in options.names:
        store.forget(name)
        print(f"{name}: forgotten")
    if options.unused_for is not None:
        for key in store.list_keys():
            if time.time() - store.last_used(key) >= options.unused_for * DAY_S:
                for name in store.names_of(key):
                    store.forget(name)
                    print(f"{name}: forgotten, not used for {options.unused_for:g} days")
    freed = []
    for key in store.list_keys():
        if not store.names_of(key):
            with store.hold(key, waiting=lambda key=key: print(f"waiting: {key} is being built")):  # type: ignore[misc]
                if not store.names_of(key):
                    built = store.read(key)
                    what = "half built" if built is None else ", ".join(built.requested)
                    size = store.delete(key)
                    print(f"{key} ({what}): deleted, {format_size(size)}")
                    freed.append(size)
    print(f"{format_size(sum(freed))} freed" if freed else "nothing to delete: other names mean what is built")
    return 0
