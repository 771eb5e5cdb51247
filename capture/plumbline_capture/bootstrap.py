"""Start the recorder in this process: it waits for the imports of torch and of the trainer, then installs its hooks."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from types import ModuleType
from typing import Any, NoReturn

from plumbline_capture.posthook import after_import
from plumbline_capture.settings import Settings, read_environment

PRELOAD_FAILED = 70
"""exit code of a process whose preload file failed (EX_SOFTWARE of sysexits.h)"""


def start() -> None:
    """Wait for torch; called once, by `sitecustomize`, in every process below the launcher."""
    settings = read_environment()
    if settings is not None:
        after_import("torch", lambda torch: _on_torch(settings))


def _on_torch(settings: Settings) -> None:
    recorder: Any = None
    try:
        if settings.steps:
            from plumbline_capture.install import install

            recorder = install(settings)
    except Exception:  # the training goes on without a record; the manifest will say that no step was seen
        sys.stderr.write("plumbline-capture: the recorder could not be installed, the run goes on without it\n")
        traceback.print_exc()
    for position, path in enumerate(settings.preload):
        try:
            module = load_file(path, name=f"plumbline_preload_{position}")
            module.install()
        except Exception:
            _abort(path)
        if recorder is not None and getattr(module, "REPLACES", None):
            name = os.path.splitext(os.path.basename(path))[0]
            recorder.stand_ins.append({"name": name, "replaces": list(module.REPLACES)})
    for position, path in enumerate(settings.hooks if recorder is not None else ()):
        try:
            load_file(path, name=f"plumbline_hooks_{position}").install(recorder)
        except Exception:
            _abort(path)


def load_file(path: str, *, name: str) -> Any:
    """Execute a Python file and return it as a module, which is `name` from now on."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: not a Python file; give one that defines install().")
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _abort(path: str) -> NoReturn:
    """End the process: a run that lacks what the preload was to do would be judged as if it had it.

    An exception would not do: frameworks import torch inside `try` to learn whether it is there.
    """
    sys.stderr.write(f"plumbline-capture: preload file {path} failed, the process ends with code {PRELOAD_FAILED}\n")
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(PRELOAD_FAILED)
