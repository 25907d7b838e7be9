"""Plain text for terminals: nothing is cut, nothing is taken for markup."""

from __future__ import annotations

from collections.abc import Sequence


def shown(text: str) -> str:
    """The text with what a terminal would obey, or cannot show, escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def columns(rows: Sequence[Sequence[str]], *, right: bool) -> list[str]:
    """Lines of aligned columns, two spaces apart; a cell may have lines of its own."""
    lines = [[cell.split("\n") for cell in row] for row in rows]
    widths = [max(len(part) for row in lines for part in row[i]) for i in range(len(lines[0]))]
    text = []
    for row in lines:
        for k in range(max(len(cell) for cell in row)):
            parts = [cell[k] if k < len(cell) else "" for cell in row]
            aligned = [
                part.rjust(width) if right and i else part.ljust(width)
                for i, (part, width) in enumerate(zip(parts, widths, strict=True))
            ]
            text.append("  ".join(aligned).rstrip())
    return text
