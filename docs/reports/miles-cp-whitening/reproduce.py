"""Miles with context parallelism: over which tokens are advantages whitened?

Two context-parallel ranks hold the two halves of every sequence, as Miles divides them. Its `normalize_advantages` must
give each token what whitening over all tokens gives it: that is what one rank alone computes.

Needs torch and Miles, installed or as a clone: `python reproduce.py [path of the clone]`. Runs on the CPU, over gloo.
Exit code: 1 the whitened advantages are wrong, 0 they are right, 2 not judged.
"""

from __future__ import annotations

import os
import socket
import sys
from argparse import Namespace

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError as error:
    print(f"not judged: {error}")
    sys.exit(2)

PROMPTS, RESPONSES = (5, 9, 7), (19, 31, 12)  # tokens of three sequences
TOLERANCE = 1e-4  # of the largest advantage; float32 gives 1e-6 here


def make_advantages() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Advantages and loss masks, one float32 tensor (response tokens,) a sequence; later tokens have larger ones."""
    generator = torch.Generator().manual_seed(0)
    advantages = [torch.randn(long, generator=generator) + torch.linspace(-1, 2, long) for long in RESPONSES]
    masks = [(torch.rand(long, generator=generator) > 0.2).float() for long in RESPONSES]
    return advantages, masks


def whiten(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The definition, in float64: less the mean, through the unbiased standard deviation of the tokens that count."""
    kept = values.double()[mask.bool()]
    return (values.double() - kept.mean()) * torch.rsqrt(kept.var() + 1e-8)


def normalize(rank: int, ranks: int, groups: dict[str, dist.ProcessGroup]) -> list[list[tuple[int, float]]]:
    """Miles' whitening on one rank's part: for each sequence, the place in its response and the whitened advantage."""
    from miles.backends.training_utils.cp_utils import get_logits_and_tokens_offset_with_cp
    from miles.backends.training_utils.loss_hub.advantages import normalize_advantages
    from miles.backends.training_utils.parallel import ParallelState, set_parallel_state
    from miles.utils.ft_utils.process_group_utils import GroupInfo

    one = GroupInfo(rank=0, size=1, group=groups["alone"])
    both = GroupInfo(rank=rank, size=ranks, group=groups["all"])
    # one data-parallel rank; the context-parallel ranks share its sequences
    set_parallel_state(
        ParallelState(intra_dp=one, intra_dp_cp=both, cp=both, tp=one, pp=one, ep=one, etp=one, indep_dp=one)
    )
    advantages, masks = make_advantages()
    totals = [prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    places = [list(range(long)) for long in RESPONSES]
    if ranks > 1:
        places = []
        for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
            _, _, _, spans = get_logits_and_tokens_offset_with_cp(prompt + response, response, "thd")
            places.append([at - prompt for begin, end in spans for at in range(begin, end) if at >= prompt])
    mine = [advantage[at] for advantage, at in zip(advantages, places, strict=True)]
    whitened = normalize_advantages(Namespace(qkv_format="thd"), mine, masks, totals, list(RESPONSES))
    return [list(zip(at, part.tolist(), strict=True)) for at, part in zip(places, whitened, strict=True)]


def work(rank: int, ranks: int, port: int, answers: mp.SimpleQueue) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    alone = [dist.new_group([each]) for each in range(ranks)]
    part = normalize(rank, ranks, {"alone": alone[rank], "all": dist.group.WORLD})
    gathered: list[object] = [None] * ranks
    dist.all_gather_object(gathered, part)
    if rank == 0:
        answers.put(gathered)
    dist.barrier()
    dist.destroy_process_group()


def run(ranks: int) -> torch.Tensor:
    """Whitened advantages of all tokens, put together from all ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, args=(ranks, port, answers), nprocs=ranks)
    whole = [torch.full((long,), float("nan"), dtype=torch.float64) for long in RESPONSES]
    for part in answers.get():
        for sequence, tokens in zip(whole, part, strict=True):
            for place, value in tokens:
                sequence[place] = value
    return torch.cat(whole)


def main() -> int:
    if len(sys.argv) > 1:
        clone = os.path.abspath(sys.argv[1])
        sys.path.insert(0, clone)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (clone, os.environ.get("PYTHONPATH"))))
    try:
        import miles.backends.training_utils.loss_hub.advantages  # noqa: F401  # what the ranks need
    except ImportError as error:
        print(f"not judged: {error}; name a clone of Miles: python reproduce.py PATH")
        return 2
    print(f"torch {torch.__version__}, python {sys.version.split()[0]}")
    advantages, masks = make_advantages()
    expected = whiten(torch.cat(advantages), torch.cat(masks))
    single, double = run(1), run(2)
    allowed = TOLERANCE * float(expected.abs().max())
    if not float((single - expected).abs().max()) <= allowed:
        print("not judged: without context parallelism, Miles does not whiten as defined")
        return 2
    worst = int((double - expected).abs().argmax())
    print(f"control (cp_size=1): token {worst} is {single[worst]:.9f}")
    print(f"expected: {expected[worst]:.9f}  (token {worst}, whitened over all {int(torch.cat(masks).sum())} tokens)")
    print(f"observed: {double[worst]:.9f}  (cp_size=2)")
    differing = int(((double - expected).abs() > allowed).sum())
    print(f"{differing} of {len(expected)} tokens differ; largest difference {(double - expected).abs().max():.6g}")
    wrong = differing > 0 or bool(double.isnan().any())
    print("WRONG: each context-parallel rank whitens by its own tokens" if wrong else "right")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
