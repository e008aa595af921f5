"""The shapes that cm-chessboard draws: its own pieces and markers have another licence than its code."""

import chess
import chess.svg

# python-chess draws a piece in a square of 45.
TILE = 45
MIDDLE = TILE / 2


def sprite() -> str:
    """An SVG file with python-chess's pieces under cm-chessboard's names, `wk` to `bp`, markers and an arrow's head."""
    pieces = "".join(
        f'<g id="{"w" if symbol.isupper() else "b"}{symbol.lower()}">{shape}</g>'
        for symbol, shape in chess.svg.PIECES.items()
    )
    markers = (
        f'<g id="markerSquare"><rect width="{TILE}" height="{TILE}"/></g>'
        f'<g id="markerFrame"><rect x="2" y="2" width="{TILE - 4}" height="{TILE - 4}" fill="none"/></g>'
        f'<g id="markerDot"><circle cx="{MIDDLE}" cy="{MIDDLE}" r="7"/></g>'
        f'<g id="markerBevel"><circle cx="{MIDDLE}" cy="{MIDDLE}" r="19" fill="none" stroke="#000"/></g>'
        '<g id="arrowDefault"><path d="M6 6 L28 20 L6 34 Z"/></g>'
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {TILE} {TILE}">{pieces}{markers}</svg>'
