"""Text by others in a Markdown file, so that it is shown as it is and adds no markup, link or script."""

import re

# Characters that begin markup, wherever they stand; underlines only at the edge of a word.
MARKUP = re.compile(r"[\\`*\[\]|~#$!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# Starts of addresses, which many readers of Markdown make links of, and mentions of accounts.
ADDRESS = re.compile(r"(:)(?=//)|(?<=www)(\.)|(@)", re.IGNORECASE)


def escaped(text: object) -> str:
    """Return a text as Markdown that shows it on one line, in running text or in a table.

    >>> escaped("a_b <img src=x> `c` [d](http://e) *f*")
    'a_b &lt;img src=x&gt; \\\\`c\\\\` \\\\[d\\\\](http&#58;//e) \\\\*f\\\\*'
    """
    line = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    marked = MARKUP.sub(lambda found: "\\" + found[0], line)
    return ADDRESS.sub(lambda found: f"&#{ord(found[0])};", marked)


def code(text: str) -> str:
    """Return a text as inline code.

    >>> code("a"), code("a`b")
    ('`a`', '`` a`b ``')
    """
    line = " ".join(text.split())
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if longest else f"{fence}{line}{fence}"
