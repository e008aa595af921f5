"""Random edits of a completion: spans are deleted, repeated or moved, and fragments of both formats are inserted."""

from hypothesis import strategies as st

SPLINTERS = ("M:", " E: ", "B:", "+", "/", " ", "0", "-", " nan ", " so ", "9", "x", " e2e4", " 0.5", "+1+0", "Q~")


@st.composite
def mutations(draw: st.DrawFn, text: str) -> str:
    """Draw the text after one to three random edits. It may still be well-formed."""
    for _ in range(draw(st.integers(1, 3))):
        start, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        before, span, after = text[:start], text[start:end], text[end:]
        edits = (before + after, before + span + span + after, before + after + span, text + " " + span)
        text = draw(st.sampled_from([*edits, before + draw(st.sampled_from(SPLINTERS)) + text[start:]]))
    return text
