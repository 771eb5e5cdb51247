"""Running one script in an environment's Python: no secret in sight, with limits, nothing of it left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from workers.runner import ProcessEnd, supervise
from workers.sandbox import name_shortly, scrub_environment

SCRIPT = "reproduce.py"


def run_script(
    script: str,
    *,
    python: str,
    directory: Path,
    time_limit_s: float,
    memory_limit_bytes: int | None,
    on_line: Callable[[str], None],
    cancelled: Callable[[], bool],
    tag: str | None = None,
    on_start: Callable[[int], None] = lambda process_group: None,
) -> tuple[ProcessEnd, Path]:
    """Run a script to its end or to a limit, and return how it ended and the file of its output.

    directory: where it works; its home and its temporary directory lie there too, so that no setting or token of the
    worker's own is read. It gets no network, as far as Hugging Face's libraries go.
    """
    work = directory / "script"
    work.mkdir(parents=True)
    file = work / SCRIPT
    file.write_text(script, encoding="utf-8")
    log = directory / "log"
    with name_shortly(work.resolve()) as near:
        extra = {"TMPDIR": str(near), "HOME": str(work.resolve()), "PYTHONNOUSERSITE": "1", "PYTHONHASHSEED": "0"}
        end = supervise(
            [python, str(file)],
            cwd=work,
            environment=scrub_environment(scratch=work.resolve(), extra=extra),
            log=log,
            time_limit_s=time_limit_s,
            memory_limit_bytes=memory_limit_bytes,
            on_line=on_line,
            cancelled=cancelled,
            tag=tag,
            on_start=on_start,
        )
    return end, log
