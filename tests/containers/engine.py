"""A stand-in for docker and podman, which runs a container's command as a process of this machine.

It takes what they take of a run, refuses what they refuse, and gives the command no variable but those named, and no
path but those mounted: the command and what the recorder was told are looked through for others.

Its state is a directory, named by DOCKER_HOST: `images` and `python`, lines of what there is; `calls`, the argument
list of each call as JSON, a line each; `<name>.pid` while a container runs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

TAKES_NOTHING = ("--rm", "--init")


def root() -> Path:
    return Path(os.environ["DOCKER_HOST"].removeprefix("unix://"))


def inspect(image: str) -> int:
    if image in (root() / "images").read_text().split():
        return 0
    print(f"Error: No such image: {image}", file=sys.stderr)
    return 1


def start(arguments: list[str]) -> int:
    options: dict[str, list[str]] = {}
    while arguments[0].startswith("--"):
        option, equals, value = arguments.pop(0).partition("=")
        if not equals and option not in TAKES_NOTHING:
            value = arguments.pop(0)
        options.setdefault(option, []).append(value)
    image, *command = arguments
    if inspect(image):
        return 125
    environment = {"PATH": "/usr/bin:/bin"}
    for each in options.get("--env", ()):
        name, equals, value = each.partition("=")
        if equals or name in os.environ:
            environment[name] = value if equals else os.environ[name]
    mounts = [dict(part.partition("=")[::2] for part in each.split(",")) for each in options.get("--mount", ())]
    sources = [Path(mount["source"]) for mount in mounts]
    for path in (*sources, *find_paths(command, environment)):
        if not path.exists() or not any(path.is_relative_to(source) for source in sources):
            print(f"stand-in: {path} is not mounted", file=sys.stderr)
            return 125
    if command[0] == "python3":
        command[0] = (root() / "python").read_text().strip()
    if not command[0] or (os.sep not in command[0] and not any(Path(d, command[0]).exists() for d in ("/usr/bin",))):
        print(f'exec: "{command[0] or "python3"}": executable file not found in $PATH', file=sys.stderr)
        return 127
    workdir = options.get("--workdir", ["/"])[0]
    started = subprocess.Popen(command, env=environment, cwd=workdir, start_new_session=True)
    file = root() / f"{options.get('--name', ['unnamed'])[0]}.pid"
    file.write_text(str(started.pid))
    signal.signal(signal.SIGTERM, lambda number, frame: os.killpg(started.pid, signal.SIGTERM))
    code = started.wait()
    file.unlink(missing_ok=True)
    return 128 - code if code < 0 else code


def find_paths(command: list[str], environment: dict[str, str]) -> list[Path]:
    """Every path that the command and the recorder's settings name, and those in the configuration files among them."""
    texts = [*command, environment.get("PLUMBLINE_CAPTURE", ""), environment.get("PYTHONPATH", "")]
    texts += [Path(each).read_text() for each in command if each.endswith("config.json") and Path(each).is_file()]
    found = {Path(each) for text in texts for each in re.findall(r"(?<![\w:])/[\w./-]+", text)}
    return [path for path in sorted(found) if path.exists()]


def remove(name: str) -> int:
    file = root() / f"{name}.pid"
    if file.exists():
        os.killpg(int(file.read_text()), signal.SIGKILL)
        file.unlink()
    return 0


def install(directory: Path, *names: str) -> None:
    """Write a program for each engine."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        file = directory / name
        file.write_text(f'#!/bin/sh\nexec {sys.executable} -S {__file__} "$@"\n')
        file.chmod(0o755)


def main(arguments: list[str]) -> int:
    with (root() / "calls").open("a") as file:
        file.write(json.dumps(arguments) + "\n")
    verb, *rest = arguments
    if verb == "image":
        return inspect(rest[-1])
    return remove(rest[-1]) if verb == "rm" else start(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
