"""`python -m benchmarks.detection [--only NAME] [--out DIR] [--resume]`: what the checks see of faults.

Every fault of checks/faults and every healthy variant is a real framework run with the recorder in it, judged by every
check whose runs the case has. Results are appended to DIR/results.jsonl as each case ends; `--resume` takes up a run
that was stopped. Thresholds are those of checks/tolerance.py as they are. Prints both halves, by pattern, and writes
docs/detection.json and docs/detection.md once every case has a result.
"""

from __future__ import annotations

import os
import sys

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_DISABLE_PROGRESS_BARS="1")
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_DATASETS_OFFLINE="1")

from benchmarks.detection.command import main  # (libraries read the variables as they are imported)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
