"""What a service is: a command, when it is ready, and how it is asked to end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plumbline_web.up.accounts import Account


@dataclass(frozen=True)
class Service:
    """One long-lived child of `plumbline up`."""

    name: str
    command: tuple[str, ...]
    is_ready: Callable[[int], bool]
    """asked with the process's number until it says yes; returns within a second"""
    detail: str
    """shown once it is ready: where it listens, what it serves"""
    stop_signal: signal.Signals = signal.SIGTERM
    """finish what you are at and end"""
    stop_s: float = 10.0
    """how long it may take over that"""
    end_signal: signal.Signals = signal.SIGTERM
    """drop everything and end cleanly"""
    end_s: float = 10.0
    environment: Mapping[str, str] = field(default_factory=dict)
    """beside this process's own"""
    account: Account | None = None
    cwd: Path | None = None
    pass_fds: tuple[int, ...] = ()
