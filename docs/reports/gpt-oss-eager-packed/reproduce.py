"""gpt_oss with eager attention: does a document change the loss of the next one in its pack?

Two documents are packed into one row, with position_ids that begin again at 0. The second one's loss must be what it is
alone. Qwen3 goes through the same code first, to show that the comparison itself is sound.

Needs torch and transformers; takes seconds on a CPU. Exit code: 1 the loss is wrong, 0 it is right, 2 not judged.
"""

from __future__ import annotations

import sys

try:
    import torch
    import transformers
    from transformers import GptOssConfig, GptOssForCausalLM, Qwen3Config, Qwen3ForCausalLM
except ImportError as error:
    print(f"not judged: {error}")
    sys.exit(2)

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "attn_implementation": "eager",
}
LONGS = (24, 40)  # tokens of the two documents
TOLERANCE = 1e-4  # relative; float32 and another order of sums give 1e-6 here


def mean_loss(logits: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
    """Mean next-token loss of a document, in float64. logits: (tokens, vocabulary), document: (tokens,)."""
    log_probs = logits.double().log_softmax(-1)[:-1]
    return -log_probs.gather(-1, document[1:, None]).mean()


def gradient(loss: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
    """All gradients of a loss in one vector, float64."""
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([grad.double().flatten() for grad in grads])


def compare(model: torch.nn.Module) -> tuple[float, float, float, float]:
    """The second document's loss alone, and in the pack.

    Beside them: how far its logits move when the first document changes, and how far the gradient of its loss is off,
    as a part of the gradient's norm.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    first, other, second = (
        torch.randint(0, SIZES["vocab_size"], (long,), generator=generator).to(device) for long in (LONGS[0], *LONGS)
    )
    positions = torch.cat([torch.arange(long, device=device) for long in LONGS])[None]

    def packed(before: torch.Tensor) -> torch.Tensor:
        row = torch.cat([before, second])[None]
        return model(input_ids=row, position_ids=positions, use_cache=False).logits[0, LONGS[0] :]

    alone = model(input_ids=second[None], use_cache=False).logits[0]
    in_pack = packed(first)
    moved = float((in_pack - packed(other)).detach().abs().max())
    right, seen = mean_loss(alone, second), mean_loss(in_pack, second)
    grad = gradient(right, model)
    off = float((gradient(seen, model) - grad).norm() / grad.norm())
    return right.item(), seen.item(), moved, off


def build(kind: type, config: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(config).to("cuda" if torch.cuda.is_available() else "cpu").eval()


def main() -> int:
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, python {sys.version.split()[0]}")
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    gpt_oss = GptOssConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=32, rope_parameters=rope)
    right, seen, _, off = compare(build(Qwen3ForCausalLM, Qwen3Config(**SIZES)))
    if abs(seen - right) > TOLERANCE * right:
        print(f"not judged: qwen3, which isolates documents, gives {seen:.9f} and not {right:.9f}")
        return 2
    print(f"control (qwen3): alone {right:.9f}, packed {seen:.9f}, gradient off by {off:.2g} of its norm")
    expected, observed, moved, off = compare(build(GptOssForCausalLM, gpt_oss))
    print(f"expected: {expected:.9f}  (loss of the second document alone)")
    print(f"observed: {observed:.9f}  (its loss behind another document)")
    print(f"its gradient is off by {off:.4g} of its norm")
    print(f"changing the first document moves the second one's logits by up to {moved:.4g}")
    wrong = abs(observed - expected) > TOLERANCE * expected
    print("WRONG: the documents of a pack are not isolated" if wrong else "right")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
