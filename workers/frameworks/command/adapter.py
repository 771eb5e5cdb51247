"""Any command line that trains with torch, with the recorder in front: what it does is as its person states it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from plumbline_capture.name_map import read_name_map

from checks.captures.log import LogRecord
from checks.errors import BadRequest
from checks.samples import read_preferences, read_samples
from checks.spec import PREFERENCE_OBJECTIVES, RunSpec
from workers.environments.containers import framework_image
from workers.frameworks.base import Launch
from workers.frameworks.command.stated import REQUIRED
from workers.frameworks.interpreter import framework_python
from workers.frameworks.options import Option, read_options
from workers.frameworks.requests import check_request
from workers.frameworks.trainer import build_environment, read_run_log

OPTIONS: Mapping[str, Option] = {
    "directory": Option(str, "where the command is run; a directory of its own unless given"),
    "names": Option(str, "JSON file of what each parameter is called in the checkpoint (docs/capture-format.md)"),
    "full_parameters": Option(str, "regular expression of parameters that no checkpoint holds, to be kept whole"),
}

PLACEHOLDERS = ("{model}", "{data}", "{output}")
"""What an argument may hold, to be replaced by a path: of the checkpoint, of the data, of a directory for its files."""


class CommandAdapter:
    """A command line of the user's own; only an administrator may give one to a server."""

    name = "command"

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest for a command that cannot be started, and for what must be stated of it and is not."""
        if not spec.command:
            remedy = "give command=…, or after -- on the command line, and {model} and {data} where it takes paths"
            raise BadRequest("command", "is not given", remedy)
        for name, remedy in REQUIRED.items():
            if name in spec.unstated:
                raise BadRequest(name, "is not stated, and of a command nobody else knows it", remedy)
        options = _read_options(spec)
        find_program(spec, directory=options.get("directory"))
        if "names" in options:
            _check_names(Path(options["names"]))
        _check_data(spec)

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Make `scratch`, and return the command with the paths that it asks for in their places."""
        self.check(spec)
        scratch = scratch.resolve()
        output = scratch / "output"
        output.mkdir(parents=True, exist_ok=True)
        options = _read_options(spec)
        directory = options.get("directory")
        paths = dict(zip(PLACEHOLDERS, (spec.model.resolve(), spec.data.resolve(), output), strict=True))
        program = find_program(spec, directory=directory)
        return Launch(
            command=(program, *(_fill(each, paths) for each in spec.command[1:])),
            environment={**build_environment(spec.processes), **({} if framework_image() else {"PATH": search_path()})},
            full_parameters=options.get("full_parameters"),
            output=output,
            names=Path(options["names"]) if "names" in options else None,
            directory=None if directory is None else Path(directory),
        )

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """A log in the Trainer's form, from `{output}/trainer_state.json` or printed; none where there is neither."""
        return read_run_log(output, log)


def search_path() -> str:
    """PATH, with the programs of the named environment first: its `python` is the command's."""
    return os.pathsep.join((str(Path(framework_python("command")).parent), os.environ.get("PATH", os.defpath)))


def find_program(spec: RunSpec, *, directory: str | None) -> str:
    """Return the path of the command's program.

    Raises:
        BadRequest: there is none of that name, or it cannot be executed.
    """
    asked = spec.command[0]
    if framework_image() is not None:
        return asked  # only the image knows
    if os.sep not in asked:
        found = shutil.which(asked, path=search_path())
        if found is None:
            raise BadRequest(
                "command", f"there is no program {asked!r} on the path", "correct its name, or give a path"
            )
        return found
    path = Path(directory or ".", asked).resolve()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise BadRequest("command", f"{asked} is no program that can be executed", "give it after its interpreter")
    return str(path)


def _read_options(spec: RunSpec) -> dict[str, str]:
    options = {name: str(value) for name, value in read_options(spec, OPTIONS).items()}
    directory = options.get("directory")
    if directory is not None and not (Path(directory).is_absolute() and Path(directory).is_dir()):
        found = f"directory {directory} is no directory that is there"
        raise BadRequest("options", found, "give the whole path of one, or leave it out")
    return options


def _check_names(file: Path) -> None:
    if not file.is_absolute():
        raise BadRequest("options", f"names {file} is a relative path", "give the whole path")
    try:
        read_name_map(file, rank=0)
    except ValueError as error:
        raise BadRequest("options", f"names: {error}", "write it as docs/capture-format.md says") from error


def _check_data(spec: RunSpec) -> None:
    if spec.objective in PREFERENCE_OBJECTIVES:
        samples = tuple(side for pair in read_preferences(spec.data) for side in pair.sides)
    else:
        samples = read_samples(spec.data)
    check_request(spec, samples, options=OPTIONS)


def _fill(argument: str, paths: Mapping[str, Path]) -> str:
    for name, path in paths.items():
        argument = argument.replace(name, str(path))
    return argument
