"""The small language model of `plain_lm` trained in float16 autocast with a loss scale: five attempts, of which the
second overflows. `python scaled_lm.py`; prints the SHA-256 of the parameters that it ends with.
"""

from __future__ import annotations

import torch

from tests.capture.plain_lm import PlainLM, digest, loss_of, tokens_of

ATTEMPTS, OVERFLOWS = 5, 2


def main() -> None:
    """The scale begins at 16, doubles after two steps in a row, and halves after an infinity."""
    torch.manual_seed(0)
    model = PlainLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1.0 - done / ATTEMPTS)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
    generator = torch.Generator().manual_seed(5)
    for attempt in range(1, ATTEMPTS + 1):
        for _ in range(2):
            tokens = tokens_of(generator)
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(tokens)
            scaler.scale(loss_of(logits.float(), tokens) / 2).backward()
        if attempt == OVERFLOWS:
            model.head.weight.grad[0, 0] = float("inf")
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            schedule.step()
        optimizer.zero_grad()
    print(digest(model))


if __name__ == "__main__":
    main()
