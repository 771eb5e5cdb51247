"""Markdown that people write, as HTML that is safe to show: comments, minutes, reports.

Two layers, so that a hole in one is none in the page: the parser knows no HTML of its own (what looks like a tag is
text), and its output goes through a sanitiser's allow-list. Pictures are links: a remote one would tell its server who
reads the page, and when.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import nh3
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

TAGS = frozenset(
    {
        *("a", "blockquote", "br", "code", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "strong"),
        *("table", "tbody", "td", "th", "thead", "tr", "ul"),
    }
)
ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}}
SCHEMES = frozenset({"http", "https", "mailto"})
REL = "noopener noreferrer nofollow ugc"

HIGHEST, LOWEST = 3, 6
"""The page has the first two levels of headings; a text's own begin below them, whichever it begins with."""

SCROLLED = {
    "<pre>": '<pre tabindex="0">',
    "<table>": '<div class="markdown-table" tabindex="0" role="group" aria-label="Table"><table>',
    "</table>": "</table></div>",
}
"""What is wider than the page is scrolled, by keys too."""

LONGEST = 100_000
"""characters, more than a tracker takes; what is longer is shown as it stands, for parsing it would take seconds"""


def render_markdown(text: str) -> SafeString:
    """The HTML of a Markdown text: no script, no HTML of its author's, no pictures, links that vouch for nothing."""
    if len(text) > LONGEST:
        text = "\n".join(f"    {line}" for line in text.splitlines())
    html = nh3.clean(
        _PARSER.render(text),
        tags=set(TAGS),
        attributes=ATTRIBUTES,
        url_schemes=set(SCHEMES),
        link_rel=REL,
        strip_comments=True,
    )
    for plain, scrolled in SCROLLED.items():
        html = html.replace(plain, scrolled)
    # mark_safe: nh3 has left only what the allow-lists above name
    return mark_safe(html)


def _lower_headings(state: StateCore) -> None:
    headings = [token for token in state.tokens if token.type in ("heading_open", "heading_close")]
    first = min((int(token.tag[1:]) for token in headings), default=1)
    for token in headings:
        token.tag = f"h{min(LOWEST, int(token.tag[1:]) - first + HIGHEST)}"


def _render_image(
    self: RendererHTML, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]
) -> str:
    token = tokens[idx]
    link = Token("link_open", "a", 1, attrs={"href": token.attrs.get("src", "")})
    alt = self.renderInlineAsText(token.children or [], options, env)
    text = Token("text", "", 0, content=f"picture: {alt}" if alt else "picture")
    return self.renderInline([link, text, Token("link_close", "a", -1)], options, env)


def _build_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    parser.core.ruler.push("lower_headings", _lower_headings)
    parser.add_render_rule("image", _render_image)
    return parser


_PARSER = _build_parser()
