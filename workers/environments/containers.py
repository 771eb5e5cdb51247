"""Frameworks of a container image: the argument list of docker or podman around a run, and what the run sees of here.

A run sees the model, the data, the recorder and the drivers at the paths that they have here, read-only, and its own
directories to write into; no network, no other file of this machine, and it is this process's user.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import plumbline_capture

from checks.errors import BadRequest
from workers.environments.recipes import FRAMEWORKS, has_gpu

if TYPE_CHECKING:
    from workers.frameworks.base import Launch

VARIABLE = "PLUMBLINE_FRAMEWORK_CONTAINER"
"""The image that the frameworks run in, as `--env` sets it for its validation."""

ENGINES = ("docker", "podman")
"""In the order in which they are looked for."""

PYTHON = "python3"
"""The interpreter of an image."""

FOR_ENGINE = ("DOCKER_HOST", "DOCKER_CONTEXT", "XDG_RUNTIME_DIR")
"""Variables that say where the engine is; the run itself does not see them."""

OWN = frozenset({"PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "HF_HOME", "LANG", "LC_ALL", *FOR_ENGINE})
"""Variables that are the image's, or that name other places there."""

RECORDED = ("PLUMBLINE_CAPTURE", "PYTHONPATH")
"""What the recorder gives to the command that it runs."""

SHARED_MEMORY = "2g"
"""Of /dev/shm, through which processes of a run hand tensors on; docker gives 64 MB by itself."""

LOOK_S = 60.0
"""How long the engine may take to say what it has, or to start an interpreter."""


@dataclass(frozen=True)
class Mount:
    """A path that a container sees under the same name."""

    path: Path
    writable: bool = False

    @property
    def argument(self) -> str:
        return f"type=bind,source={self.path},target={self.path}" + ("" if self.writable else ",readonly")


def framework_image() -> str | None:
    """The image that frameworks run in; None where they run on this machine's own Pythons."""
    return os.environ.get(VARIABLE) or None


def find_engine() -> str:
    """The path of docker, else of podman.

    Raises:
        BadRequest: there is neither.
    """
    for name in ENGINES:
        found = shutil.which(name)
        if found is not None:
            return found
    raise BadRequest("container", "neither docker nor podman is on the path", "install one, or name a Python instead")


def read_image(image: str) -> str:
    """The version of the Python in an image.

    Raises:
        BadRequest: no engine, no such image on this machine, or no Python in it.
    """
    engine = find_engine()
    if not image or image.startswith("-") or any(letter.isspace() for letter in image):
        raise BadRequest("container", f"{image!r} is no name of an image", "write it as NAME:TAG")
    there = _ask([engine, "image", "inspect", image])
    if there.returncode:
        name = Path(engine).name
        found = f"{name} has no image {image} ({_last_line(there)})"
        raise BadRequest("container", found, f"fetch it with {name} pull {image}, or build it")
    done = run_in_image(image, [PYTHON, "-I", "-c", "import platform; print(platform.python_version())"])
    if done.returncode:
        found = f"{image} runs no {PYTHON} ({_last_line(done)})"
        raise BadRequest("container", found, "name an image that has the framework and its Python")
    return done.stdout.strip()


def run_in_image(image: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in an image that sees nothing of this machine."""
    return _ask([find_engine(), "run", "--rm", "--network=none", image, *command])


def enclose(
    launch: Launch,
    *,
    image: str,
    name: str,
    out: Path,
    scratch: Path,
    preload: Sequence[Path],
    memory_limit_bytes: int | None,
    variables: Iterable[str],
) -> Launch:
    """The launch with its command in a container called `name`.

    `variables`: names of what the run's environment holds beside the launch's own. What is alive in a container is none
    of this process's children: a limit on memory is the engine's.

    Raises:
        BadRequest: no engine, or a path that cannot be mounted.
    """
    engine = find_engine()
    arguments = [engine, "run", "--rm", "--init", f"--name={name}", "--network=none", f"--shm-size={SHARED_MEMORY}"]
    arguments += [f"--user={os.getuid()}:{os.getgid()}"]
    if Path(engine).name == "podman":
        arguments += ["--userns=keep-id"]
    if memory_limit_bytes is not None:
        arguments += [f"--memory={memory_limit_bytes}"]
    if has_gpu():
        arguments += ["--device=nvidia.com/gpu=all" if Path(engine).name == "podman" else "--gpus=all"]
    for mount in choose_mounts(launch, out=out, scratch=scratch, preload=preload):
        arguments += ["--mount", mount.argument]
    arguments += [f"--workdir={launch.directory or scratch}"]
    for each in ("HOME", "TMPDIR"):
        arguments += ["--env", f"{each}={scratch}"]
    arguments += ["--env", f"HF_HOME={scratch / 'huggingface'}"]
    for each in sorted({*variables, *launch.environment, *RECORDED} - OWN):
        arguments += ["--env", each]  # its value is that of the engine's own environment
    environment = {each: os.environ[each] for each in FOR_ENGINE if each in os.environ}
    command = (*arguments, image, *launch.command)
    return replace(launch, command=command, environment={**environment, **launch.environment})


def choose_mounts(launch: Launch, *, out: Path, scratch: Path, preload: Sequence[Path]) -> tuple[Mount, ...]:
    """What a run must see: where it writes, what it reads, the recorder, the drivers, and files that its command names.

    Raises:
        BadRequest: a path with a comma, which ends a mount's argument.
    """
    writable = [scratch, out, *([launch.directory] if launch.directory else [])]
    files = [*launch.hooks, *preload, *([launch.names] if launch.names else [])]
    named = [Path(each) for each in launch.command if each.startswith(os.sep) and Path(each).is_file()]
    readable = [FRAMEWORKS, Path(plumbline_capture.__file__).parent]
    readable += [file.parent for file in (*files, *named)]
    readable += [path for read in launch.reads for path in _follow(read)]
    mounts = [Mount(path.absolute(), writable=True) for path in writable]
    for path in readable:
        if not any(path.absolute().is_relative_to(mount.path) for mount in mounts):
            mounts.append(Mount(path.absolute()))
    for mount in mounts:
        if "," in str(mount.path):
            raise BadRequest("container", f"{mount.path} has a comma, and cannot be mounted", "rename it")
    return tuple(dict.fromkeys(mounts))


def _follow(path: Path) -> Iterator[Path]:
    """A path, and what links of it and in it lead to: a hub's snapshot is links to files that lie elsewhere."""
    yield path
    if path.is_symlink():
        yield path.resolve()
    for entry in path.iterdir() if path.is_dir() else ():
        if entry.is_symlink():
            yield entry.resolve()


def remove(name: str) -> None:
    """End a container that may still be there; one that has ended is gone by itself."""
    with contextlib.suppress(BadRequest, OSError, subprocess.TimeoutExpired):
        subprocess.run([find_engine(), "rm", "--force", name], capture_output=True, timeout=LOOK_S, check=False)


@contextlib.contextmanager
def leaving_nothing(name: str | None) -> Iterator[None]:
    """End the container of a run whose client was killed: its processes are the engine's children, not ours."""
    try:
        yield
    finally:
        if name is not None:
            remove(name)


def refuse_launcher(launcher: object | None) -> None:
    """Raise BadRequest for a run that something else than this machine is to start."""
    if launcher is not None:
        found = "the jobs of a cluster are not started in containers of this machine's engine"
        raise BadRequest("launcher", found, "leave it out, or name an environment that is no container")


def _ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadRequest("container", f"{command[0]} does not answer ({error})", "see that its service runs") from None


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["it said nothing"])[-1]
