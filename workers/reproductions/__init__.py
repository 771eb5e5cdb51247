"""Known problems shown again: the release that has one and the release that mended it, judged by the same checks."""
