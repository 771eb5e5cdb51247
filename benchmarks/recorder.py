"""What the recorder costs: `python -m benchmarks.recorder`.

Prints the cost of an idle recorder and of a captured step, as parts of the plain step of a model of at least 8 million
parameters (batch 4 × 256 tokens), and the bytes of one kind's sketches for the shapes of a model of a billion.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from plumbline_capture.install import install
from plumbline_capture.settings import Settings
from plumbline_capture.sketch import K
from plumbline_capture.state import Recorder
from safetensors.torch import save_file
from torch.optim import optimizer as optimizers
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks._timing import Spread, interleave, processor_seconds, ratios, spread

ROUNDS = 15
BATCH, POSITIONS = 4, 256
IDLE_LIMIT, CAPTURED_LIMIT, SKETCH_BYTES_LIMIT = 0.03, 1.0, 12_000_000
_NEVER = 1_000_000_000  # a step that is not reached: the hooks are armed and record nothing


class Hooks:
    """The places that the recorder hooks, so that plain and recorded steps can take turns in one process."""

    def __init__(self) -> None:
        self._attributes = [
            (torch.autograd, "backward"),
            (torch.nn.functional, "cross_entropy"),
            (torch.nn.utils, "clip_grad_norm_"),
            (torch.nn.utils.clip_grad, "clip_grad_norm_"),
            (torch.nn.utils, "clip_grads_with_norm_"),
        ]
        self._originals = [getattr(owner, name) for owner, name in self._attributes]

    def take_off(self) -> None:
        """Bring torch back to what it was."""
        for (owner, name), original in zip(self._attributes, self._originals, strict=True):
            setattr(owner, name, original)
        optimizers._global_optimizer_pre_hooks.clear()
        optimizers._global_optimizer_post_hooks.clear()

    def put_on(self, out: Path, *, step: int) -> Recorder:
        """Install a recorder that captures one step."""
        self.take_off()
        return install(Settings(out=str(out), steps=(step,)))


class Training:
    """A model of at least 8 million parameters and its training step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=8192,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=POSITIONS,
        )
        self.model = LlamaForCausalLM(config).train()
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.input_ids = torch.randint(0, config.vocab_size, (BATCH, POSITIONS))

    def step(self) -> None:
        """Forward, backward, clip, update."""
        self.optimizer.zero_grad()
        self.model(input_ids=self.input_ids, labels=self.input_ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def measure_steps(directory: Path) -> tuple[int, dict[str, list[float]]]:
    """Return the number of parameters and the seconds of plain, idle and captured steps, one figure a round."""
    hooks = Hooks()
    training = Training()
    training.step()

    def plain() -> float:
        return processor_seconds(training.step)

    def recorded(step: int) -> Callable[[], float]:
        def one_step() -> float:
            with tempfile.TemporaryDirectory(dir=directory) as out:
                recorder = hooks.put_on(Path(out), step=step)
                if step == _NEVER:
                    training.step()  # the first step finds the model
                seconds = processor_seconds(training.step)
                for handle in recorder.root_handles:
                    handle.remove()
                hooks.take_off()
                return seconds

        return one_step

    actions: dict[str, Callable[[], float]] = {"plain": plain, "idle": recorded(_NEVER), "captured": recorded(1)}
    return training.parameters, interleave(actions, rounds=ROUNDS)


def measure_sketch_bytes(directory: Path) -> tuple[int, int]:
    """Return the parameters of a model of a billion, and the bytes of the file with one sketch of each tensor.

    Shapes of https://huggingface.co/meta-llama/Llama-3.2-1B/blob/main/config.json
    """
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config)
    shapes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    file = directory / "sketches.safetensors"
    save_file({f"gradient/{name}/sketch": torch.zeros(K, dtype=torch.float64) for name in shapes}, str(file))
    return sum(shapes.values()), file.stat().st_size


def overhead(seconds: list[float], plain: list[float]) -> float:
    """Return how much longer the fastest round is than the fastest plain one, as a part of that.

    Other work on the machine can only slow a round down, so the fastest are the least disturbed.
    """
    return min(seconds) / min(plain) - 1


def rounds(seconds: dict[str, list[float]], name: str) -> Spread:
    """Return the spread of the overhead over the rounds."""
    return spread([ratio - 1 for ratio in ratios(seconds[name], seconds["plain"])])


def main() -> int:
    """Print the table; returns 1 where a limit is crossed."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        parameters, seconds = measure_steps(Path(name))
        idle = overhead(seconds["idle"], seconds["plain"])
        captured = overhead(seconds["captured"], seconds["plain"])
        billion, size = measure_sketch_bytes(Path(name))
    print(f"model: {parameters:,} parameters, batch {BATCH} x {POSITIONS} tokens, {ROUNDS} rounds, one thread")
    print(f"plain step, seconds:               {spread(seconds['plain'])}")
    print(f"idle recorder, part of a step:     {idle:.3f}  (limit {IDLE_LIMIT})")
    print(f"    by round:                      {rounds(seconds, 'idle')}")
    print(f"captured step, part of a step:     {captured:.3f}  (limit {CAPTURED_LIMIT})")
    print(f"    by round:                      {rounds(seconds, 'captured')}")
    print(f"sketches of {billion:,} parameters: {size:,} bytes  (limit {SKETCH_BYTES_LIMIT:,})")
    kept = idle <= IDLE_LIMIT and captured <= CAPTURED_LIMIT and size <= SKETCH_BYTES_LIMIT
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
