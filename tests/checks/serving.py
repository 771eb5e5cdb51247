"""An OpenAI-compatible endpoint for a Hugging Face directory: `POST /v1/completions`, `/v1/chat/completions`, models.

A real server on a free port of this machine, with transformers behind it; its faults are those of real ones.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BOS = 1
MAX_BODY = 1 << 20


@dataclass
class Behaviour:
    """How the server departs from a plain one; `asked`: the bodies that it was sent."""

    temperature: bool = False
    """log-probabilities are those after the division by the temperature"""
    bos: bool = False
    """a BOS is put before every prompt, also one of token ids"""
    extensions: bool = True
    """takes vLLM's parameters; a strict server refuses names that it does not know"""
    prompt_logprobs: bool = True
    """answers vLLM's `prompt_logprobs`"""
    usage: bool = True
    echo: bool = True
    generates: int = 1
    vocabulary: int | None = None
    key: str | None = None
    chat: bool = True
    asked: list[dict[str, Any]] = field(default_factory=list)


class Model:
    """The directory's model and tokenizer, in float32 and evaluation mode."""

    def __init__(self, directory: Path) -> None:
        self.name = directory.name
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(directory)

    def log_probs(self, ids: list[int], *, temperature: float) -> list[float | None]:
        """None, then the log-probability of each next token."""
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([ids])).logits[0, :-1].float() / temperature
        told = logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
        return [None, *told.tolist()]


@contextmanager
def serve(model: Model, behaviour: Behaviour) -> Iterator[str]:
    """The address of the server, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, {"data": [{"id": model.name}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), MAX_BODY)))
            behaviour.asked.append({"path": self.path, **body})
            if behaviour.key is not None and self.headers.get("Authorization") != f"Bearer {behaviour.key}":
                self._answer(401, {"error": {"message": "no valid key"}})
            elif self.path == "/v1/completions":
                self._answer(*_complete(model, behaviour, body))
            elif self.path == "/v1/chat/completions" and behaviour.chat:
                text = model.tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
                count = len(model.tokenizer(text, add_special_tokens=False)["input_ids"]) + behaviour.bos
                self._answer(200, {"choices": [], "usage": {"prompt_tokens": count}})
            else:
                self._answer(404, {"error": "no such path"})

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


PLAIN = {"model", "prompt", "max_tokens", "temperature", "top_p", "echo", "logprobs"}


def _complete(model: Model, behaviour: Behaviour, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    if not behaviour.extensions and set(body) - PLAIN:
        return 422, {"detail": f"unknown fields {sorted(set(body) - PLAIN)}"}
    ids = [*([BOS] if behaviour.bos else []), *body["prompt"]]
    if behaviour.vocabulary is not None and max(ids) >= behaviour.vocabulary:
        return 400, {"error": {"message": f"Token id {max(ids)} is out of vocabulary"}}
    values = model.log_probs(ids, temperature=body["temperature"] if behaviour.temperature else 1.0)
    choice: dict[str, Any] = {"index": 0, "text": "", "logprobs": None}
    if behaviour.echo:
        numbered = body.get("return_tokens_as_token_ids", False)
        named = [f"token_id:{token}" if numbered else model.tokenizer.decode([token]) for token in ids]
        generated = behaviour.generates
        choice["logprobs"] = {
            "tokens": [*named, *["token_id:0" if numbered else "x"] * generated],
            "token_logprobs": [*values, *[-1.0] * generated],
        }
    if behaviour.prompt_logprobs and "prompt_logprobs" in body:
        entries = [{str(token): {"logprob": value}} for token, value in zip(ids[1:], values[1:], strict=True)]
        choice |= {"prompt_logprobs": [None, *entries], "prompt_token_ids": ids}
    usage = {"prompt_tokens": len(ids), "completion_tokens": behaviour.generates}
    return 200, {"choices": [choice], **({"usage": usage} if behaviour.usage else {})}
