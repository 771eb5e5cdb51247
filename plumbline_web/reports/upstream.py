"""How a report stands upstream, asked of GitHub's REST API."""

from __future__ import annotations

import re
from dataclasses import dataclass

import httpx2

from plumbline_web.reports.enums import UpstreamState

API = "https://api.github.com"
"""https://docs.github.com/en/rest/issues/issues#get-an-issue; of a pull request it tells whether it was merged, too"""

TIMEOUT_S = 20.0

_ISSUE = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+)/(?:issues|pull)/(\d+)(?:[/?#].*)?")


class Unreachable(RuntimeError):
    """Nothing could be learnt; `str()` is a sentence."""


@dataclass(frozen=True)
class Issue:
    """An issue or a pull request on GitHub."""

    owner: str
    name: str
    number: int


def parse_issue(url: str) -> Issue | None:
    """The issue that an address is of; None for any other address."""
    found = _ISSUE.fullmatch(url)
    return Issue(found[1], found[2], int(found[3])) if found else None


def fetch_state(issue: Issue, *, token: str, api: str = API) -> UpstreamState:
    """How an issue or a pull request stands.

    Raises:
        Unreachable: no answer, or one that is none; the token is in no sentence.
    """
    headers = {"Accept": "application/vnd.github+json", "Authorization": f"Bearer {token}"}
    address = f"{api}/repos/{issue.owner}/{issue.name}/issues/{issue.number}"
    try:
        answer = httpx2.get(address, headers=headers, timeout=TIMEOUT_S, follow_redirects=False)
    except httpx2.HTTPError as error:
        raise Unreachable(f"GitHub does not answer ({type(error).__name__})") from error
    if answer.status_code != 200:
        raise Unreachable(f"GitHub answers {answer.status_code} for {issue.owner}/{issue.name}#{issue.number}")
    try:
        document = answer.json()
        if (document.get("pull_request") or {}).get("merged_at"):
            return UpstreamState.MERGED
        return UpstreamState(document["state"])
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Unreachable("GitHub's answer is none of an issue") from error
