"""A small language model in plain torch, and loops that train it: scripts for the recorder to run around.

`python plain_lm.py LOOP…`; each loop prints the SHA-256 of the parameters that it ends with.
"""

from __future__ import annotations

import copy
import hashlib
import io
import os
import signal
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, ROWS, POSITIONS = 90, 64, 2, 12


class Block(nn.Module):
    """A residual feed-forward block with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, eps=3e-6)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """hidden_states: (rows, positions, width)."""
        return hidden_states + self.down(functional.gelu(self.up(self.norm(hidden_states))))


class PlainLM(nn.Module):
    """Embedding, two blocks (one under each kind of checkpointing if asked), head."""

    def __init__(self, *, checkpointing: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("frequencies", torch.tensor([1.0, 0.1, 0.01]), persistent=False)
        self.cap = 30.0
        self.gradient_checkpointing = checkpointing

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """tokens: (rows, positions); returns logits: (rows, positions, vocabulary)."""
        hidden = self.embed(tokens)
        for number, block in enumerate(self.blocks):
            if self.gradient_checkpointing and self.training:
                hidden = checkpoint(block, hidden, use_reentrant=number == 1)
            else:
                hidden = block(hidden)
        return self.head(hidden)


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Next-token cross-entropy, as most loops have it."""
    return functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def scripted_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """What torch.jit.script compiles, cross_entropy with it."""
    return functional.cross_entropy(logits, target)


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of all parameters."""
    content = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(content).hexdigest()


def tokens_of(generator: torch.Generator) -> torch.Tensor:
    """Return (rows, positions) token ids."""
    return torch.randint(0, VOCABULARY, (ROWS, POSITIONS), generator=generator)


def train_everyday() -> None:
    """Three steps of two micro-batches, with all that must not be taken for training around them."""
    torch.set_default_device("cpu")  # a torch function mode: functional.cross_entropy calls itself through it
    model = PlainLM(checkpointing=True)
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(
        [{"params": list(model.parameters())[:3]}, {"params": list(model.parameters())[3:], "weight_decay": 0.0}],
        lr=1e-2,
    )
    other = nn.Linear(2, 2)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(3):
        model.eval()
        with torch.no_grad():
            model(tokens_of(generator))
        model.train()
        optimizer.zero_grad()
        for number in range(2):
            tokens = tokens_of(generator)
            tokens[0, -3:] = 5
            logits = model(tokens, tokens != 5)
            with torch.no_grad():
                loss_of(logits, tokens)  # a metric
            target = torch.where(tokens == 5, -7, tokens)[:, 1:].reshape(-1)
            loss = functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), target, ignore_index=-7)
            (loss / 2).backward()
            if number == 0:
                copy.deepcopy(model)(tokens)  # an exponential moving average would do this
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        torch.jit.script(scripted_loss)(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
        other(torch.ones(1, 2)).sum().backward()
        other_optimizer.step()
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        torch.load(saved, weights_only=False)(tokens)
    torch.set_default_device(None)
    print(digest(model))


def train_clipping_early() -> None:
    """Clips after each micro-batch, and computes its loss without cross_entropy from keyword arguments."""
    model = PlainLM()
    generator = torch.Generator().manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            tokens = tokens_of(generator)
            log_probs = functional.log_softmax(model(tokens=tokens)[:, :-1], dim=-1)
            (-log_probs.gather(-1, tokens[:, 1:, None]).sum()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    print(digest(model))


def train_compiled() -> None:
    """One step of a model wrapped by torch.compile, loss outside."""
    model = PlainLM()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = tokens_of(torch.Generator().manual_seed(3))
    loss_of(compiled(tokens), tokens).backward()
    optimizer.step()
    print(digest(model))


def train_replicated() -> None:
    """One step under DistributedDataParallel, each rank on its own tokens; then rank 1 is killed."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = nn.parallel.DistributedDataParallel(PlainLM())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = tokens_of(torch.Generator().manual_seed(10 + rank))
    loss_of(model(tokens), tokens).backward()
    optimizer.step()
    torch.distributed.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def train_sharded() -> None:
    """One step of two ranks under FSDP2 (https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)."""
    from torch.distributed.fsdp import fully_shard

    with tempfile.TemporaryDirectory() as directory:
        children = []
        for rank in range(2):
            child = os.fork()
            if child == 0:
                meeting = f"file://{directory}/meeting"
                torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
                torch.manual_seed(0)
                model = PlainLM()
                mesh = torch.distributed.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
                for block in model.blocks:
                    fully_shard(block, mesh=mesh)
                fully_shard(model, mesh=mesh)
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
                tokens = tokens_of(torch.Generator().manual_seed(10 + rank))
                loss_of(model(tokens), tokens).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
                optimizer.step()
                os._exit(0)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(max(codes))


def train_then_hang() -> None:
    """One step, then nothing for ever."""
    train_one_step()
    sys.stdout.flush()
    time.sleep(600)


def train_one_step() -> None:
    """One step, in which a second backward follows the first."""
    model = PlainLM()
    tokens = tokens_of(torch.Generator().manual_seed(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model(tokens), tokens).backward()
    (0.01 * model.head.weight.square().sum()).backward()
    optimizer.step()
    print(digest(model))


LOOPS = {
    "everyday": train_everyday,
    "clipping-early": train_clipping_early,
    "compiled": train_compiled,
    "replicated": train_replicated,
    "sharded": train_sharded,
    "hang": train_then_hang,
    "one-step": train_one_step,
}

if __name__ == "__main__":
    for loop in sys.argv[1:]:
        torch.manual_seed(0)
        LOOPS[loop]()
