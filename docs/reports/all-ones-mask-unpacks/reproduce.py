"""Packed position_ids beside an attention_mask of ones: are the documents of the pack still isolated?

Two documents are packed into one row, with position_ids that begin again at 0. A mask of ones says that no token is
padding, which is also what no mask says; so with either, the second document's loss must be what it is alone.

Needs torch and transformers; takes seconds on a CPU. Exit code: 1 some loss is wrong, 0 all are right, 2 not judged.
"""

from __future__ import annotations

import sys

try:
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    print(f"not judged: {error}")
    sys.exit(2)

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text")
SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
LONGS = (24, 40)  # tokens of the two documents
TOLERANCE = 1e-4  # relative; float32 and another order of sums give 1e-6 here


def mean_loss(logits: torch.Tensor, document: torch.Tensor) -> float:
    """Mean next-token loss of a document, in float64. logits: (tokens, vocabulary), document: (tokens,)."""
    log_probs = logits.double().log_softmax(-1)[:-1]
    return float(-log_probs.gather(-1, document[1:, None]).mean())


@torch.no_grad()
def compare(family: str, attention: str) -> tuple[float, float, float]:
    """The second document's loss alone, in the pack without a mask, and in the pack with a mask of ones."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = AutoConfig.for_model(family, **SIZES)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(device).eval()
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randint(1, SIZES["vocab_size"], (long,), generator=generator).to(device) for long in LONGS)
    row = torch.cat([first, second])[None]
    positions = torch.cat([torch.arange(long, device=device) for long in LONGS])[None]

    def behind(mask: torch.Tensor | None) -> float:
        logits = model(input_ids=row, position_ids=positions, attention_mask=mask, use_cache=False).logits
        return mean_loss(logits[0, LONGS[0] :], second)

    alone = model(input_ids=second[None], use_cache=False).logits[0]
    return mean_loss(alone, second), behind(None), behind(torch.ones_like(row))


def main() -> int:
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, python {sys.version.split()[0]}")
    print("loss of the second document; expected is that of the document alone")
    wrong = judged = 0
    for family in FAMILIES:
        for attention in ("sdpa", "eager"):
            name = f"{family}, {attention}"
            alone, without, with_ones = compare(family, attention)
            if abs(without - alone) > TOLERANCE * alone:
                print(f"{name}: not judged: without a mask it is {without:.9f} and not {alone:.9f}")
                continue
            judged += 1
            bad = abs(with_ones - alone) > TOLERANCE * alone
            wrong += bad
            said = "WRONG" if bad else "right"
            print(f"{name}: expected {alone:.9f}, no mask {without:.9f}, observed with ones {with_ones:.9f}  {said}")
    if not judged:
        print("not judged: no model isolates the documents of a pack without a mask")
        return 2
    print(f"{'WRONG' if wrong else 'right'}: a mask of ones changes the loss in {wrong} of {judged} cases")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
