"""Markdown that people write: what is kept, and what can never come out of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline_web.markdown import ATTRIBUTES, LONGEST, TAGS, render_markdown

PIECES = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![a](http://far.example/x.png)",
    "[a](javascript:alert(1))",
    "[a]( data:text/html,x 'onclick=x')",
    "<a href='vbscript:x'>",
    "<https://near.example>",
    '[a](https://near.example "t\\" onmouseover=\\"x")',
    "<!-- x -->",
    "| a | b |\n|--:|---|\n| 1 | 2 |\n",
    "# a\n",
    "```html\n<b>\n```\n",
    "&lt;script&gt;",
    "\n",
    "> ",
    "* ",
    "`",
    "](",
)


class Tags(HTMLParser):
    """Every tag of a text with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def tags_of(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(html)
    return parser.seen


def test_tables_code_and_lists_are_kept_and_headings_begin_below_the_pages_own() -> None:
    html = render_markdown("## One\n\n| a |\n|---|\n| 1 |\n\n- x\n\n```python\na < b\n```\n")
    assert "<h3>One</h3>" in html
    assert '<div class="markdown-table" tabindex="0" role="group" aria-label="Table"><table>' in html
    assert html.count("</table></div>") == 1
    assert "<td>1</td>" in html
    assert "<li>x</li>" in html
    assert '<pre tabindex="0"><code>a &lt; b\n</code></pre>' in html


def test_html_of_the_author_is_text() -> None:
    assert render_markdown("<script>x</script> <b>") == "<p>&lt;script&gt;x&lt;/script&gt; &lt;b&gt;</p>\n"


def test_a_picture_is_a_link_that_says_so() -> None:
    assert tags_of(render_markdown("![the plot](https://far.example/x.png)")) == [
        ("p", {}),
        ("a", {"href": "https://far.example/x.png", "rel": "noopener noreferrer nofollow ugc"}),
    ]
    assert ">picture: the plot</a>" in render_markdown("![the plot](https://far.example/x.png)")


def test_a_link_that_would_run_something_is_no_link() -> None:
    for address in ("javascript:alert(1)", "data:text/html,x", "vbscript:x", "JaVaScRiPt:x", "file:///etc/passwd"):
        assert "href" not in render_markdown(f"[a]({address})"), address


def test_a_text_longer_than_any_tracker_takes_is_shown_as_it_stands() -> None:
    html = render_markdown("# a\n" + "*b* " * (LONGEST // 4))
    assert html.startswith('<pre tabindex="0"><code># a\n*b* *b*')


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=12), max_size=12).map("".join))
def test_nothing_but_the_allowed_tags_and_addresses_comes_out(text: str) -> None:
    for tag, attributes in tags_of(render_markdown(text)):
        if tag == "div":
            assert attributes["class"] == "markdown-table"
            continue
        assert tag in TAGS
        assert set(attributes) <= ATTRIBUTES.get(tag, set()) | {"rel", "tabindex"}
        assert re.match(r"(https?|mailto):|[^:]*$", attributes.get("href") or "", re.I), attributes
