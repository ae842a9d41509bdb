"""Tables as text: in Markdown, or as columns without lines."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table, whose columns are padded so that it also reads well as plain text."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    rule = ["-" * width for width in widths]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [header, rule, *rows]
    ]


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table without rules. Columns are aligned right, except for the first and the last (left)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers, last in rows:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells, last]))
    return lines
