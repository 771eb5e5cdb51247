"""Collecting waits while modules load, and goes on as before."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from workers.garbage import importing

END = """
import atexit, gc
from workers.garbage import end_at_once
end_at_once()
end_at_once()
open(r"{path}", "w").write("buffered")
atexit.register(lambda: print(gc.get_freeze_count()))
"""


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_nothing_is_collected_while_importing_and_all_of_it_stays() -> None:
    gc.collect()
    before = gc.get_freeze_count()
    with importing():
        assert not gc.isenabled()
        made = weakref.ref(Cycle())
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    gc.collect()
    assert made() is not None
    gc.unfreeze()
    gc.collect()
    assert made() is None


def test_a_failing_import_leaves_the_collector_as_it_was() -> None:
    gc.disable()
    try:
        with pytest.raises(ImportError), importing():
            raise ImportError
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()


def test_a_process_ends_with_its_files_written_and_its_handlers_run(tmp_path: Path) -> None:
    path = tmp_path / "file"
    ended = subprocess.run([sys.executable, "-c", END.format(path=path)], capture_output=True, text=True, check=True)
    assert path.read_text() == "buffered"
    assert ended.stdout == "0\n"  # handlers run last in, first out: those of the process before the freezing
