"""Small models are slower on several threads than on one, and nothing here may ask the network."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import torch  # the settings above are read at import

torch.set_num_threads(1)
