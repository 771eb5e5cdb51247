"""The documents that the API takes and gives, for reading the answers and for the OpenAPI file.

What comes in is read field by field (`body.py`, `submission.py`), so that every wrong field is named at once; the
classes named …In only describe it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema
from pydantic import ConfigDict, Field

from plumbline_web.api.cursor import DEFAULT_LIMIT, LARGEST_LIMIT


class ErrorBody(Schema):
    code: str = Field(description="for programs: invalid, unauthenticated, forbidden, not_found, illegal_state, …")
    message: str = Field(description="one sentence: what was found, and what to do")
    fields: dict[str, str] = Field(description="field → what is wrong with it; empty where it is no field's fault")


class Error(Schema):
    error: ErrorBody


class SubmissionIn(Schema):
    model_config = ConfigDict(title="Submission")
    framework: str = Field(description="name of a framework, as GET /frameworks lists them")
    model: str = Field(description="tiny:<family>, or a path under an allowed directory of the server")
    data: str = Field(description="name of a sample that ships, or a path under an allowed directory of the server")
    checks: list[str] | None = Field(None, description="names; null for all")
    settings: dict[str, Any] = Field({}, description="fields of the run spec that differ from their defaults")
    inject: str | None = Field(None, description="slug of a fault to inject")
    full: bool = Field(False, description="record whole tensors instead of sketches")
    fresh: bool = Field(False, description="run the framework even where an equal capture is stored")
    queue: str = Field("cpu", description="cpu or gpu")
    time_limit_s: float | None = Field(None, description="of each framework run; 600 by default")
    memory_limit_gb: float | None = Field(None, description="of each framework run's processes together; 10⁹ bytes")
    capture: int | None = Field(None, description="an uploaded capture to judge instead of a run of the framework")
    idempotency_key: str | None = Field(None, description="instead of the header of that name")
    keep_refusal: bool = Field(False, description="where the framework cannot do it, the overview says so")


class CancelIn(Schema):
    model_config = ConfigDict(title="Cancellation")
    version: int | None = Field(None, description="refuse (409, stale) where the validation has changed since")


class Validation(Schema):
    id: str
    number: int
    state: str = Field(description="queued, running, done, failed or cancelled")
    verdict: str | None = Field(description="the worst of its checks' verdicts, once it is done")
    framework: str
    framework_version: str
    model: str
    model_revision: str
    data: str
    profile: str | None
    queue: str
    owner: str
    passed: int
    failed: int
    inconclusive: int
    errors: int
    skipped: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    duration_s: float | None


class ValidationDetail(Validation):
    version: int = Field(description="rises with every change of state")
    phase: str = Field(description="what it is at, or waits for")
    detail: str = Field(description="last line of output, or what is waited for")
    fraction: float = Field(description="0 to 1, of the whole")
    elapsed_s: float | None
    remaining_s: float | None = Field(description="expected; null where there is nothing to expect it from")
    error: str = Field(description="why it failed; else empty")
    warnings: list[str]
    checks: list[str] | None
    settings: dict[str, Any]
    inject: str | None
    full: bool
    time_limit_s: float
    memory_limit_bytes: int | None
    spec: dict[str, Any] = Field(description="the whole run spec")
    plan: dict[str, Any] = Field(description="runs with the checks that read them, skipped checks with the reason")
    cloned_from: str | None
    capture: int | None = Field(description="the uploaded capture that is judged; null where the framework was run")
    jobs: list[Job]


class Job(Schema):
    id: int
    kind: str
    state: str
    phase: str
    detail: str
    attempts: int
    error: str


class ValidationPage(Schema):
    rows: list[Validation]
    next_cursor: str | None = Field(description="of the next page; null at the end")


class Result(Schema):
    validation: str
    check: str
    status: str
    sentence: str
    pattern: str | None
    first_wrong: str | None
    value: Any = Field(description="of the measurement nearest to, or furthest beyond, its threshold")
    threshold: Any
    detection_limit: Any
    elapsed_s: float
    framework: str
    framework_version: str
    model: str
    judged_at: datetime
    plumbline: str = Field(description="version that judged")


class ResultPage(Schema):
    rows: list[Result]
    next_cursor: str | None


class UploadFileIn(Schema):
    name: str = Field(description="manifest.json, or a name that ends in .safetensors; no directories")
    size: int = Field(description="bytes")
    sha256: str = Field(description="64 hexadecimal digits")


class UploadIn(Schema):
    model_config = ConfigDict(title="Upload")
    files: list[UploadFileIn]
    resume: bool = Field(False, description="take up one's own upload of the very same files, where there is one")


class UploadFile(Schema):
    number: int = Field(description="of the file, from 0: its place in the list")
    name: str
    size: int
    sha256: str
    received: int = Field(description="bytes that are there: the offset of the next chunk")


class Upload(Schema):
    id: str
    chunk_bytes: int = Field(description="the most that one chunk may have")
    files: list[UploadFile]
    capture: int | None = Field(description="once it is complete")


class CaptureFile(Schema):
    name: str
    size: int
    sha256: str


class Capture(Schema):
    id: int
    digest: str
    size: int
    framework: str
    steps: list[int]
    tensors: int
    created_at: datetime
    uploaded_by: str | None
    validations: list[str] = Field(description="whose framework run recorded it, the latest 50; empty for an upload")


class CaptureDetail(Capture):
    files: list[CaptureFile]


class CapturePage(Schema):
    rows: list[Capture]
    next_cursor: str | None


class Problem(Schema):
    id: str = Field(description="P-45")
    slug: str
    title: str
    framework: str = Field(description="where the fault sits")
    component: str
    stage: str
    pattern: str
    silent: bool = Field(description="training goes on without an error")
    models: list[str] = Field(description="families that are involved; empty where it is general")
    status: str = Field(description="upstream: fixed, open, reported, closed-not-fixed or upstream (in a dependency)")
    provenance: str = Field(description="imported, reproduced, found or first-raised")
    first_seen: str
    affected: str
    fixed_in: str
    caught_by: list[str] = Field(description="kinds of checks that should see it")
    url: str


class ProblemDetail(Problem):
    symptom: str
    root_cause: str
    fix: str
    related_urls: list[str]
    cpu_reproducible: str
    shows_in_release: str
    confidence: str
    affected_spec: list[dict[str, Any]] = Field(description="ranges of released packages; empty: not known")
    recurrences: list[str] = Field(description="names of the groups that it belongs to")
    checks: list[str] = Field(description="checks of this version that say they catch it")
    version: int


class ProblemPage(Schema):
    rows: list[Problem]
    next_cursor: str | None


class TokenIn(Schema):
    model_config = ConfigDict(title="NewToken")
    name: str
    scopes: list[str] = Field(description="of read, submit, upload, triage")
    days: int = Field(description="1 to 365")


class Token(Schema):
    id: int
    name: str
    hint: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None
    revoked_at: datetime | None


class NewToken(Token):
    secret: str = Field(description="shown this once")


class Framework(Schema):
    name: str
    title: str
    package: str
    installed: str = Field(description="version here")


class ModelOut(Schema):
    name: str
    family: str
    parameters: int
    revision: str
    first_seen_at: datetime


class Check(Schema):
    name: str
    claim: str
    description: str


class Me(Schema):
    username: str
    role: str
    scopes: list[str] | None = Field(description="of the token that calls; null for a session")
    plumbline: str = Field(description="version of the server")
    api: int


class ResultQuery(Schema):
    """Filters of results; they combine with and."""

    validation: str = Field("", description="V-12")
    check: str = ""
    status: str = ""
    framework: str = ""
    model: str = ""
    pattern: str = ""
    cursor: str = ""
    limit: int = Field(DEFAULT_LIMIT, description=f"1 to {LARGEST_LIMIT}")


ValidationDetail.model_rebuild()
