"""What a server's worker does with the environments of its machine, in a process of its own that can be ended.

`python -m workers.environments.job wish.json said.json`: the wish is `{"verb", "name", "framework", "others", "python",
"days"}`; every line of output is progress, and what there is to say in the end is written into the second file.
"""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from checks.errors import BadRequest
from workers.environments.building import build, format_size
from workers.environments.command import add_env
from workers.environments.resolving import parse_wish
from workers.environments.store import Store
from workers.report.files import write_whole
from workers.request import BAD_REQUEST, Progress

Verb = Literal["create", "check", "remove", "evict"]


@dataclass(frozen=True)
class EnvironmentWish:
    """What is to be done: `days` of evict, the others of create; `name` of all but evict."""

    verb: Verb
    name: str = ""
    framework: str = ""
    others: tuple[str, ...] = ()
    python: str = ""
    days: float = 0.0


def do(wish: EnvironmentWish) -> tuple[int, str]:
    """Do what is wished; an exit code, 1 where something was found wrong, and what there is to say.

    Raises:
        BadRequest: it cannot be done; for a build that fails, with the line that says why.
    """
    if wish.verb == "create":
        return 0, _create(wish)
    arguments = {
        "check": ["check", wish.name],
        "remove": ["remove", wish.name],
        "evict": ["remove", f"--unused-for={wish.days:g}"],
    }[wish.verb]
    return _run(arguments)


def _create(wish: EnvironmentWish) -> str:
    begun = time.monotonic()
    asked = parse_wish(wish.framework, wish.others)
    built, fresh = build(
        asked, name=wish.name or None, python=wish.python or None, index=(), store=Store(), on_progress=_print
    )
    how = f"built in {time.monotonic() - begun:.0f} s" if fresh else "was there already"
    lines = [f"{how}, {len(built.packages)} packages, {format_size(built.size_bytes)}"]
    return "\n".join([*lines, *(f"without {each.name}: {each.reason}" for each in built.left_out)])


def _print(progress: Progress) -> None:
    print(f"{progress.phase}: {progress.detail}", flush=True)


def _run(arguments: list[str]) -> tuple[int, str]:
    """`plumbline env` with these arguments, what it prints kept."""
    import argparse

    parser = argparse.ArgumentParser()
    add_env(parser.add_subparsers())  # type: ignore[arg-type]  # of another class of parsers
    options = parser.parse_args(["env", *arguments])
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = options.run(options)
    return int(code), said.getvalue().strip()


def main(wish_file: str, said_file: str) -> int:
    """Read the wish, do it, and write what there is to say."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # pip's process is ended on the way
    content = json.loads(Path(wish_file).read_text(encoding="utf-8"))
    wish = EnvironmentWish(**{**content, "others": tuple(content.get("others", ()))})
    try:
        code, said = do(wish)
    except BadRequest as error:
        code, said = BAD_REQUEST, f"{error.found}; {error.remedy}"
    write_whole(Path(said_file), json.dumps(said))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
