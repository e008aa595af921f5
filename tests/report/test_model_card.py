"""The card of an exported model shows a stranger's text as text, whatever it contains."""

import re

import pytest
from markdown_it import MarkdownIt

from rookworld_rlvr.report.export import model_card
from rookworld_rlvr.report.markdown import code, escaped
from rookworld_rlvr.report.run_record import RunRecord

HOSTILE = [
    'ev"il<img src=x onerror=alert(1)>',
    "<script>alert(1)</script>",
    "[a](javascript:alert(1)) ![b](http://x.example/c.png)",
    "`x` ``y`` *bold* _soft_ ~~gone~~ | cell | $x$",
    "http://x.example www.x.example <http://x.example> me@x.example",
    "&lt;b&gt; \\<b> \\\\",
    "x\n\n# heading\n\n---\n\n- item\n\n<b>",
    "# heading",
]
MEASURE = {"value": 0.5, "low": 0.4, "high": 0.6}


def shown(markdown: str) -> str:
    """Return the HTML of a text, by a reader that allows HTML, tables, struck-out text."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)


def plain(html: str) -> str:
    text = re.sub(r"<[^>]*>", "", html)
    for name, character in (("lt", "<"), ("gt", ">"), ("quot", '"'), ("amp", "&")):
        text = text.replace(f"&{name};", character)
    return text.strip()


@pytest.mark.parametrize("text", HOSTILE)
def test_escaped_text_is_shown_as_it_is(text: str) -> None:
    html = shown(f"run {escaped(text)}, 3 steps")
    assert re.findall(r"<\w+", html) == ["<p"]
    assert plain(html) == f"run {' '.join(text.split())}, 3 steps"
    assert "://" not in escaped(text) and "@" not in escaped(text) and "www." not in escaped(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_inline_code_shows_its_text(text: str) -> None:
    html = shown(f"run {code(text)}, 3 steps")
    assert re.findall(r"<\w+", html) == ["<p", "<code"]
    assert plain(html) == f"run {' '.join(text.split())}, 3 steps"


@pytest.mark.parametrize("text", HOSTILE)
def test_card_of_a_strangers_run_has_no_markup_of_the_stranger(text: str) -> None:
    def html(text: str) -> str:
        summary = {
            "steps": 3,
            "after": {"policy/valid": {**MEASURE, "n": text}, text: MEASURE},
            "hashes": {text: text},
            "worse": [text],
            "gain": {text: MEASURE},
            "before": {text: MEASURE},
        }
        run = RunRecord(text, "", summary, [], [])
        return shown(model_card(run, step=3, name=text, parameters=0).text)

    assert re.findall(r"<\w+", html(text)) == re.findall(r"<\w+", html("ordinary"))
    assert "onerror" not in " ".join(re.findall(r"<[^>]*>", html(text)))
