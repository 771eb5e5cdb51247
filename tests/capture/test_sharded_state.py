"""A checkpoint whose weights are exported, and whose optimizer lies in shards beside them: that is said."""

from __future__ import annotations

from pathlib import Path

from tests.capture.running import run_recorded
from workers.frameworks.interpreter import framework_python

TRAINING = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file

model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5))
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.tensor([[1, 2, 3]])
torch.nn.functional.cross_entropy(model(ids)[0], ids[0]).backward()
optimizer.step()
saved = Path(sys.argv[1])
(saved / "model" / "consolidated").mkdir(parents=True)
(saved / "optim").mkdir()
(saved / "optim" / "__0_0.distcp").write_bytes(b"")
save_file(dict(model.state_dict()), saved / "model" / "consolidated" / "model.safetensors")
"""


def test_an_optimizer_saved_in_shards_is_a_part_that_was_not_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    saved = tmp_path / "epoch_0_step_1"
    options = ("--steps", "1", "--checkpoint", str(saved / "model" / "consolidated"))
    recorded = run_recorded(
        tmp_path / "capture", framework_python(), str(tmp_path / "train.py"), str(saved), options=options
    )
    said = "torch.distributed.checkpoint has saved it, in shards that are not read"
    assert [(note["what"], note["why"]) for note in recorded.manifest["missing"]] == [
        ("checkpoint consolidated, optimizer.pt", said)
    ]
    assert {entry["name"] for entry in recorded.entries(kind="checkpoint")} == {"0.weight", "1.weight", "1.bias"}
