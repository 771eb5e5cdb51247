"""What starts a framework's run elsewhere, and follows it as if it ran here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from workers.frameworks.base import Launch
    from workers.runner import ProcessEnd


class Launcher(Protocol):
    """Starts a run, follows it to its end or to a limit, and leaves nothing of it running."""

    def rewrite(self, launch: Launch, *, processes: int) -> Launch:
        """The command as it is to run there. Raises BadRequest for one that cannot."""

    def supervise(
        self,
        command: list[str],
        *,
        processes: int,
        cwd: Path,
        environment: Mapping[str, str],
        log: Path,
        time_limit_s: float,
        memory_limit_bytes: int | None,
        on_line: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> ProcessEnd:
        """Run a command to its end, its output into `log`."""
