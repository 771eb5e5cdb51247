"""Megatron-core with tensor parallelism and perform_initialization=False: which gradients does the norm count?

Two processes hold the halves of an embedding and of an output layer, as VocabParallelEmbedding and
ColumnParallelLinear divide them. The gradient norm of the whole model must be that of the same model undivided, whether
or not Megatron fills the weights first (a model that loads a checkpoint turns that off).

Needs torch and megatron-core. With two GPUs it runs on them, over NCCL; else on the CPU, over gloo.
Exit code: 1 the norm is wrong, 0 it is right, 2 not judged.
"""

from __future__ import annotations

import os
import socket
import sys

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError as error:
    print(f"not judged: {error}")
    sys.exit(2)

RANKS, VOCABULARY, HIDDEN, TOKENS = 2, 64, 32, 48
TOLERANCE = 1e-4  # relative; float32 sums in another order give 1e-7 here
ON_GPUS = torch.cuda.is_available() and torch.cuda.device_count() >= RANKS


def make_weights() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The embedding and the output layer, both (vocabulary, hidden) float64, and a row of tokens."""
    generator = torch.Generator().manual_seed(0)
    embedding, head = (torch.randn(VOCABULARY, HIDDEN, generator=generator, dtype=torch.float64) for _ in range(2))
    return embedding, head, torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)


def expected_norm() -> float:
    """In plain torch, float64, one process: the norm over both gradients of the mean next-token loss."""
    embedding, head, tokens = make_weights()
    embedding.requires_grad_(True)
    head.requires_grad_(True)
    logits = torch.nn.functional.embedding(tokens[:-1], embedding) @ head.T
    torch.nn.functional.cross_entropy(logits, tokens[1:]).backward()
    assert embedding.grad is not None
    assert head.grad is not None
    return float((embedding.grad.square().sum() + head.grad.square().sum()).sqrt())


def observed_norm(perform_initialization: bool) -> float:
    """The same through Megatron's layers, on this rank's halves; the gradients that count are Megatron's choice."""
    from megatron.core import ModelParallelConfig, parallel_state
    from megatron.core.optimizer.optimizer import MegatronOptimizer
    from megatron.core.optimizer.optimizer_config import OptimizerConfig
    from megatron.core.tensor_parallel import (
        ColumnParallelLinear,
        VocabParallelEmbedding,
        vocab_parallel_cross_entropy,
    )

    config = ModelParallelConfig(
        tensor_model_parallel_size=RANKS,
        perform_initialization=perform_initialization,
        use_cpu_initialization=not ON_GPUS,
        gradient_accumulation_fusion=False,
    )
    embed = VocabParallelEmbedding(VOCABULARY, HIDDEN, init_method=torch.nn.init.zeros_, config=config)
    project = ColumnParallelLinear(
        HIDDEN, VOCABULARY, config=config, init_method=torch.nn.init.zeros_, bias=False, gather_output=False
    )
    embedding, head, tokens = make_weights()
    rank = parallel_state.get_tensor_model_parallel_rank()
    with torch.no_grad():
        embed.weight.copy_(embedding.chunk(RANKS)[rank])
        project.weight.copy_(head.chunk(RANKS)[rank])
    tokens = tokens.to(embed.weight.device)
    logits, _ = project(embed(tokens[:-1, None]))  # (tokens, 1, vocabulary of this rank)
    vocab_parallel_cross_entropy(logits, tokens[1:, None]).mean().backward()

    class Optimizer(MegatronOptimizer):
        """Megatron's own choice of gradients, over the two layers; only what it leaves abstract is filled in."""

        def get_parameters(self) -> list[torch.nn.Parameter]:
            return [embed.weight, project.weight]

    Optimizer.__abstractmethods__ = frozenset()
    optimizer = Optimizer(torch.optim.SGD([embed.weight, project.weight]), OptimizerConfig(), lambda *_: None)
    if ON_GPUS:
        return float(optimizer.get_grad_norm())
    # get_grad_norm sums on CUDA only; the same sum, over the gradients that Megatron counts and over its group
    chosen = getattr(optimizer, "get_main_grads_for_grad_norm", None) or optimizer.get_grads_for_grad_norm
    total = torch.zeros((), dtype=torch.float64)
    for grad in chosen():
        total += grad.double().square().sum()
    dist.all_reduce(total, group=parallel_state.get_model_parallel_group())
    return float(total.sqrt())


def work(rank: int, port: int, answers: mp.SimpleQueue) -> None:
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron warns without it
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    if ON_GPUS:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if ON_GPUS else "gloo", rank=rank, world_size=RANKS)
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=RANKS)
    if ON_GPUS:
        tensor_parallel.model_parallel_cuda_manual_seed(0)
    seen = [observed_norm(filled) for filled in (True, False)]
    if rank == 0:
        answers.put(seen)
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    try:
        import megatron.core
    except ImportError as error:
        print(f"not judged: {error}")
        return 2
    version, python = megatron.core.__version__, sys.version.split()[0]
    print(f"megatron-core {version}, torch {torch.__version__}, python {python}")
    print(f"{RANKS} tensor-parallel ranks on {'GPUs over NCCL' if ON_GPUS else 'the CPU over gloo'}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, args=(port, answers), nprocs=RANKS)
    filled, unfilled = answers.get()
    expected = expected_norm()
    if abs(filled - expected) > TOLERANCE * expected:
        print(f"not judged: with perform_initialization=True the norm is {filled:.9f} and not {expected:.9f}")
        return 2
    print(f"control (perform_initialization=True): {filled:.9f}")
    print(f"expected: {expected:.9f}  (gradient norm of the undivided model, float64)")
    print(f"observed: {unfilled:.9f}  (perform_initialization=False)")
    wrong = abs(unfilled - expected) > TOLERANCE * expected
    print("WRONG: the norm leaves out the shards of every rank but the first" if wrong else "right")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
