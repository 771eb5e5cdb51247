"""`python -m benchmarks.matching [--out DIR] [--resume]`: is the problem behind a finding suggested?

Every fault of checks/faults is a real framework run with the recorder in it, judged as benchmarks.detection judges it;
its failing verdicts are kept in DIR/findings.jsonl as each run ends, and `--resume` takes up what was stopped. The
matcher then sees the verdicts, never the fault. Prints how often the problem that the fault is modelled on comes first
and among the first five, and writes docs/matching.json and docs/matching.md once every fault has a result.
"""

from __future__ import annotations

import os
import sys

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_DISABLE_PROGRESS_BARS="1")
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_DATASETS_OFFLINE="1")

from benchmarks.matching.command import main  # (libraries read the variables as they are imported)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
