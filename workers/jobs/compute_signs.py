"""What the computing process's output lines mean, known to both sides; importing it loads no torch."""

from __future__ import annotations

PHASE_SIGN = "» "
"""Begins a line that names the phase."""
