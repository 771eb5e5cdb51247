"""`plumbline audit`: installed or pinned releases against the known problems of training software."""

from __future__ import annotations

from workers.audit.audit import Audit, audit
from workers.audit.command import run_audit

__all__ = ["Audit", "audit", "run_audit"]
