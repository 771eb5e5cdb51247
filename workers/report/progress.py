"""The progress line on stderr: what is running, for how long, what it waits for."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from workers.report.console import clean_text
from workers.report.numbers import format_seconds
from workers.request import Progress


class ProgressLine:
    """A line that redraws itself on a terminal; elsewhere one plain line a phase, so that a log stays readable."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase: str | None = None
        self._live: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            self._live = RichProgress(
                SpinnerColumn(),
                TimeElapsedColumn(),
                BarColumn(bar_width=12),
                TextColumn("{task.description}", markup=False),
                console=self._console,
                transient=True,
            )
            self._live.start()
            self._task = self._live.add_task("", total=1.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Take up what is running now; a fraction of None leaves the bar where it is."""
        if self._live is not None and self._task is not None:
            text = clean_text(f"{progress.phase}: {progress.detail}")
            room = max(20, self._console.width - 40)
            self._live.update(self._task, description=text[:room], completed=progress.fraction)
        elif progress.phase != self._phase:
            line = f"{format_seconds(progress.elapsed_s):>8}  {progress.phase}: {progress.detail}"
            self._console.print(clean_text(line), markup=False, highlight=False, soft_wrap=True)
        self._phase = progress.phase
