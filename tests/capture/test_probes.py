"""The prepared model is asked before its first step, and the training goes on as if it had not been."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tests.capture.running import run_plain, run_recorded
from workers.frameworks.interpreter import framework_python

SCRIPT = '''
import json, sys
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

class Output:
    def __init__(self, logits, cache): self.logits, self.cache = logits, cache

class Model(nn.Module):
    """Its output depends on the tokens seen so far, kept as their sum: a cache of one tensor."""
    def __init__(self):
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(11, 8), nn.Dropout(0.5), nn.Linear(8, 11)
    def forward(self, input_ids, cache=None, use_cache=False):
        seen = self.embed(input_ids).cumsum(1)
        if cache is not None:
            seen = seen + cache
        return Output(self.head(self.drop(seen)), seen[:, -1:] if use_cache else None)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    ids = torch.randint(11, (2, 6))
    loss = nn.functional.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(float(loss), model.training)
print([float(p.sum()) for p in model.parameters()])
torch.save([p.detach() for p in model.parameters()], sys.argv[1])
'''

ROW = [1, 2, 3, 4, 5, 6, 7]
PROBES = [
    {"name": "plain", "kind": "forward", "inputs": {"input_ids": [ROW, ROW[::-1]]}},
    {"name": "one by one", "kind": "decode", "inputs": {"input_ids": [ROW]}},
    {"name": "trained", "kind": "training", "inputs": {"input_ids": [ROW]}},
    {"name": "impossible", "kind": "forward", "inputs": {"input_ids": [ROW], "mystery": [[1]]}},
]


def test_answers_are_recorded_and_the_training_is_the_same(tmp_path: Path) -> None:
    script, probes = tmp_path / "train.py", tmp_path / "probes.json"
    script.write_text(SCRIPT)
    probes.write_text(json.dumps(PROBES))
    plain = run_plain(framework_python(), str(script), str(tmp_path / "plain.pt"))
    recorded = run_recorded(
        tmp_path / "capture",
        framework_python(),
        str(script),
        str(tmp_path / "asked.pt"),
        options=("--steps", "1", "--probes", str(probes)),
    )
    assert (recorded.code, recorded.stdout) == (0, plain.stdout)
    ours, theirs = torch.load(tmp_path / "plain.pt"), torch.load(tmp_path / "asked.pt")
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))

    answers = {e["name"]: e for e in recorded.entries(kind="probe", field="log_probs")}
    assert {name: entry["dtype"] for name, entry in answers.items()} == dict.fromkeys(
        ("plain", "one by one", "trained"), "torch.float64"
    )
    whole = recorded.tensor("full", kind="probe", name="plain", field="log_probs")
    stepwise = recorded.tensor("full", kind="probe", name="one by one", field="log_probs")
    trained = recorded.tensor("full", kind="probe", name="trained", field="log_probs")
    assert whole.shape == (2, 6)
    assert torch.allclose(whole[:1], stepwise, atol=1e-6)
    assert not torch.allclose(whole[:1], trained, atol=1e-2)  # dropout acts
    given = recorded.tensor("full", kind="probe", name="plain", field="input_ids")
    assert given.tolist() == [ROW, ROW[::-1]]
    (note,) = recorded.manifest["missing"]
    assert (note["what"], note["step"]) == ("probe impossible", 1)
    assert "mystery" in note["why"]
    assert len(recorded.entries(kind="batch")) == 1


def test_a_file_that_holds_no_probes_is_refused_before_anything_runs(tmp_path: Path) -> None:
    probes = tmp_path / "probes.json"
    probes.write_text('[{"name": "x", "kind": "backward", "inputs": {"input_ids": [[1]]}}]')
    refused = run_recorded(tmp_path / "capture", "true", options=("--probes", str(probes)))
    assert refused.code == 3
    assert "a kind of forward, training, decode" in refused.stderr
    assert not (tmp_path / "capture").exists()
