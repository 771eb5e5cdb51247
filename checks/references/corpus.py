"""The documents that a data set implies, rendered and tokenised without the framework."""

from __future__ import annotations

from checks.errors import BadRequest
from checks.references.batch import Corpus
from checks.references.template import load_tokenizer, render_document
from checks.samples import read_samples
from checks.spec import RunSpec


def render_corpus(spec: RunSpec) -> Corpus | None:
    """Render every sample of the run's data; None when the checkpoint has no template or tokenizer to render with."""
    try:
        tokenizer = load_tokenizer(spec.model)
        documents = tuple(render_document(sample, tokenizer).token_ids for sample in read_samples(spec.data))
    except BadRequest:
        return None
    return Corpus(documents, spec.seq_len, tokenizer.pad_token_id, all_learned=not spec.assistant_only)
