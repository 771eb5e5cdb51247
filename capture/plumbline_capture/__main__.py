"""`python -m plumbline_capture`: the same as the `plumbline-capture` command."""

from __future__ import annotations

import sys

from plumbline_capture.cli import main

sys.exit(main())
