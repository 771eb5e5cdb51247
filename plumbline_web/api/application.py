"""The API as one application: its routers, its errors, its OpenAPI document."""

from __future__ import annotations

from ninja import NinjaAPI

from plumbline_web.api import captures, catalog, findings, problems, results, tokens, uploads, validations
from plumbline_web.api.errors import install

DESCRIPTION = """\
Everything that the pages do. A call carries the header Authorization: Bearer <token>, of a token made under Account, or
the session cookie of a signed-in page with X-CSRFToken. Times are ISO 8601 in UTC, durations in seconds, sizes in
bytes; numbers that JSON does not know are "nan", "inf" and "-inf". Lists are read page by page: pass next_cursor on as
cursor. Every error is {"error": {"code", "message", "fields"}}.
"""

api = NinjaAPI(
    title="Plumbline",
    version="1",
    description=DESCRIPTION,
    docs_url=None,  # ninja's page needs a CDN and inline scripts; `reference.py` draws one that needs neither
    openapi_url="/openapi.json",
    urls_namespace="api",
)
install(api)
api.add_router("/validations", validations.router)
api.add_router("/captures", uploads.router)
api.add_router("/captures", captures.router)
api.add_router("/problems", problems.router)
api.add_router("", findings.router)
api.add_router("", results.router)
api.add_router("", tokens.router)
api.add_router("", catalog.router)
