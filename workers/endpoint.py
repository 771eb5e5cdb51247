"""Asking an OpenAI-compatible endpoint for the log-probabilities of given rows.

`POST /v1/completions` with `echo` and `logprobs`, which vLLM and SGLang serve as OpenAI's completions did
(https://platform.openai.com/docs/api-reference/completions/create); vLLM's `prompt_logprobs` and
`return_tokens_as_token_ids` are asked for first, because they say which tokens were read
(https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html), and left out where a server refuses them.
"""

from __future__ import annotations

import json
import math
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from checks.material import Material
from checks.references.dataset import Dataset
from checks.references.template import render_messages
from checks.serving.questions import plan_questions
from checks.serving.served import COOLER, Row, Served, ServedChat, ServedRow, Weights
from workers.serving_variables import KEY, MODEL, URL, WEIGHTS, serving_variables

TIMEOUT_S = 60.0
"""For one row: a server that is still loading its model refuses at once."""

LONGEST_MESSAGE = 200
"""characters of a server's error that a sentence repeats"""

TOKEN_ID = "token_id:"
"""before a token's number, where vLLM is asked for numbers in the place of texts"""

EXTENSIONS = {"prompt_logprobs": 0, "return_tokens_as_token_ids": True, "return_token_ids": True}


class RefusedError(Exception):
    """The endpoint cannot be used, and `str()` says why. `status`: of HTTP, 0 where it never answered."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


def ask_endpoint(material: Material, *, environment: Mapping[str, str] | None = None) -> Served | None:
    """Ask the endpoint that the environment names, if any, about every row that the trainer's model has answered."""
    given = serving_variables(os.environ if environment is None else environment)
    if URL not in given:
        return None
    weights = given.get(WEIGHTS, "trained")
    if weights not in ("trained", "checkpoint"):
        return Served("the endpoint", failure=f"{WEIGHTS} is {weights!r}; set it to trained or checkpoint")
    served = cast("Weights", weights)
    rows = tuple(question.row for question in plan_questions(material, served))
    if not rows:
        why = material.no_probes or "the trainer's model was not asked"
        return Served("the endpoint", served, failure=f"there is no row to ask the endpoint about ({why})")
    try:
        endpoint = _Endpoint.find(given)
        return _ask_all(endpoint, rows, served, material.dataset)
    except RefusedError as error:
        return Served("the endpoint", served, failure=str(error))


@dataclass
class _Endpoint:
    """`base`: the URL up to and with /v1; `host`: it for a person, without credentials."""

    base: str
    host: str
    key: str | None
    model: str = ""
    extensions: bool = True

    @classmethod
    def find(cls, given: Mapping[str, str]) -> _Endpoint:
        """The endpoint with the model that it serves: the named one, else its first."""
        base = given[URL].rstrip("/")
        base = base if base.endswith("/v1") else f"{base}/v1"
        parts = urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RefusedError(f"{URL} is no http address; give one such as http://localhost:8000")
        host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        endpoint = cls(base, host, given.get(KEY))
        endpoint.model = given.get(MODEL) or endpoint._first_model()
        return endpoint

    @property
    def label(self) -> str:
        return f"{self.model} at {self.host}"

    def _first_model(self) -> str:
        try:
            return str(self.call("models", None)["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise RefusedError(f"{self.host} names no model; set {MODEL}") from None

    def call(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """POST `body`, or GET where there is none, and read the JSON that comes back.

        Raises:
            RefusedError: no answer, an error, or no JSON.
        """
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.base}/{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise RefusedError(
                f"{self.host} refuses {path} ({error.code}: {_read_message(error)})", error.code
            ) from None
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "reason", error)
            sentence = f"{self.host} does not answer ({reason}); start the server, or unset {URL}"
            raise RefusedError(sentence) from None
        except ValueError:
            raise RefusedError(f"{self.host} answers {path} with something that is no JSON; look at {URL}") from None

    def ask(self, row: Row, *, temperature: float) -> ServedRow:
        """One row, at a temperature."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(row),
            "max_tokens": 1,
            "temperature": temperature,
            "top_p": 1.0,
            "echo": True,
            "logprobs": 1,
        }
        if self.extensions:
            try:
                return self._read(self.call("completions", {**body, **EXTENSIONS}), row)
            except RefusedError as error:
                if error.status not in (400, 422):
                    raise
                plain = self._read(self.call("completions", body), row)
                self.extensions = False
                return plain
        return self._read(self.call("completions", body), row)

    def _read(self, answer: Any, row: Row) -> ServedRow:
        try:
            choice = answer["choices"][0]
            usage = answer.get("usage") or {}
            if choice.get("prompt_logprobs"):
                return _read_prompt_logprobs(choice, row)
            return _read_echo(choice, usage, row)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            sentence = f"{self.label} gives no log-probabilities of the prompt"
            raise RefusedError(f"{sentence}; it must serve echo with logprobs, or prompt_logprobs") from None


def _ask_all(endpoint: _Endpoint, rows: Sequence[Row], weights: Weights, dataset: Dataset | None) -> Served:
    answers = tuple(endpoint.ask(row, temperature=1.0) for row in rows)
    longest = max(rows, key=len)
    try:
        cooler = endpoint.ask(longest, temperature=COOLER)
    except RefusedError as error:
        if not error.status:
            raise
        cooler = None
    return Served(endpoint.label, weights, answers, cooler, _ask_chat(endpoint, dataset))


def _ask_chat(endpoint: _Endpoint, dataset: Dataset | None) -> ServedChat | None:
    """Let the endpoint render the first conversation up to its last answer; None where there is none, or it refuses."""
    if dataset is None or dataset.preferences or dataset.samples[0].form != "messages":
        return None
    sample, tokenizer = dataset.samples[0], dataset.tokenizer
    asked = sample.messages[:-1] if sample.messages[-1][0] == "assistant" else sample.messages
    if not asked or any(role not in ("system", "user", "assistant") for role, _ in asked):
        return None
    text = render_messages(asked, tokenizer, add_generation_prompt=True)
    ids = tokenizer.tokenizer.encode(text, add_special_tokens=False).ids
    messages = [{"role": role, "content": content} for role, content in asked]
    try:
        answer = endpoint.call("chat/completions", {"model": endpoint.model, "messages": messages, "max_tokens": 1})
        read = answer["usage"]["prompt_tokens"]
    except (RefusedError, KeyError, TypeError):
        return None
    if not isinstance(read, int):
        return None
    first = tokenizer.tokenizer.id_to_token(ids[0]) if ids else ""
    return ServedChat(read, len(ids), dataset.place(0), first or "")


def _read_prompt_logprobs(choice: Mapping[str, Any], row: Row) -> ServedRow:
    """vLLM's: for each token but the first, number → log-probability, that of the prompt among them."""
    entries: Sequence[Any] = choice["prompt_logprobs"]
    said = choice.get("prompt_token_ids")
    ids = tuple(int(token) for token in said) if isinstance(said, list) else None
    extra = len(entries) - len(row)
    given = row if ids is None else ids
    if len(given) != len(entries):
        return ServedRow(row, len(entries), ids, ())
    values: list[float] = []
    for token, entry in zip(given[1:], entries[1:], strict=True):
        found = entry.get(str(token))
        if found is None and len(entry) == 1:  # another token than the given one was read
            (key,) = entry
            return ServedRow(row, len(entries), _replace(row, len(values) + 1, int(key)), ())
        values.append(math.nan if found is None else float(found["logprob"]))
    return ServedRow(row, len(entries), ids, tuple(values[max(extra, 0) :]))


def _replace(row: Row, place: int, token: int) -> Row:
    return (*row[:place], token, *row[place + 1 :])


def _read_echo(choice: Mapping[str, Any], usage: Mapping[str, Any], row: Row) -> ServedRow:
    """OpenAI's: the prompt's tokens and, after them, what was generated."""
    logprobs = choice["logprobs"]
    values: Sequence[Any] = logprobs["token_logprobs"]
    if len(values) < 2:
        raise ValueError("no prompt")
    prompt, generated = usage.get("prompt_tokens"), usage.get("completion_tokens")
    read = prompt if isinstance(prompt, int) else len(values) - (generated if isinstance(generated, int) else 1)
    if len(values) < read:
        raise ValueError("the prompt is not echoed")
    tokens = [str(token) for token in (logprobs.get("tokens") or ())[:read]]
    numbered = len(tokens) == read and all(token.startswith(TOKEN_ID) for token in tokens)
    ids = tuple(int(token.removeprefix(TOKEN_ID)) for token in tokens) if numbered else None
    kept = values[1 + max(read - len(row), 0) : read]
    return ServedRow(row, read, ids, tuple(math.nan if value is None else float(value) for value in kept))


def _read_message(error: urllib.error.HTTPError) -> str:
    text = error.read(10_000).decode("utf-8", errors="replace")
    try:
        content = json.loads(text)
        found = content.get("error", content)
        text = str(found.get("message", found)) if isinstance(found, dict) else str(found)
    except (ValueError, AttributeError):
        pass
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else f"{line[: LONGEST_MESSAGE - 1]}…"
