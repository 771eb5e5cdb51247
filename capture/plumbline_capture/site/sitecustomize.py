"""Runs at the start of every Python process below the launcher, before anything of the framework.

The package is loaded from beside this file, whatever the process's own path holds, and the `sitecustomize` that this
one shadows is executed afterwards, as it would have been without the recorder.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "plumbline_capture"


def _start_recorder() -> None:
    if not os.environ.get("PLUMBLINE_CAPTURE"):
        return
    try:
        if _PACKAGE not in sys.modules:
            directory = os.path.dirname(_HERE)
            spec = importlib.util.spec_from_file_location(
                _PACKAGE, os.path.join(directory, "__init__.py"), submodule_search_locations=[directory]
            )
            if spec is None or spec.loader is None:
                raise ImportError(f"{directory} holds no package")
            module = importlib.util.module_from_spec(spec)
            sys.modules[_PACKAGE] = module
            spec.loader.exec_module(module)
        from plumbline_capture.bootstrap import start
    except Exception as error:  # the training goes on without a record; the manifest will say that no step was seen
        sys.stderr.write(f"plumbline-capture: the recorder could not start: {error!r}\n")
        return
    start()


def _run_shadowed() -> None:
    others = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start_recorder()
_run_shadowed()
