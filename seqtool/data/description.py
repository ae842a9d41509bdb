"""The description of a cache by `prepare` and `inspect`: a title and a table of its splits."""

from collections.abc import Mapping, Sequence
from typing import Any


def describe(summary: Mapping[str, Any]) -> list[str]:
    """The lines."""
    known, languages = summary["vocabulary"], summary.get("languages", [])
    what = " → ".join(languages) or ("images and captions" if "images" in summary["splits"]["train"] else "")
    title = f"{summary['corpus']}, {what}" if what else summary["corpus"]
    sizes = f"{known.get('size', known.get('source')):,}"
    if languages and not known["joint"]:
        sizes = f"{languages[0]} {known['source']:,} and {languages[1]} {known['target']:,}"
    end = ", joint" if known.get("joint") else ""
    cells = [[("split", name), *_cells(split, languages)] for name, split in summary["splits"].items()]
    rows = [[column for column, _ in cells[0]], *([cell for _, cell in row] for row in cells)]
    return [f"{title}; vocabulary: {sizes} entries ({known['kind']}){end}", *table(rows)]


def _cells(split: Mapping[str, Any], languages: Sequence[str]) -> list[tuple[str, str]]:
    """A split's cells by column: examples, mean lengths, the share of unknown tokens, and what is left out."""
    sides = [split["source"], split["target"]] if languages else [split]
    tokens, unknown = (sum(side[name] for side in sides) for name in ("tokens", "unknown"))
    names = [name for name in ("pairs", "images", "captions", "characters", "lines") if name in split]
    counts = [(name, f"{split[name]:,}") for name in names]
    share = ("unknown", f"{unknown / max(tokens, 1):.2%}")
    if "lines" in split:
        return [*counts, ("tokens", f"{tokens:,}"), share]
    means = [f"{side['tokens'] / max(split[names[-1]], 1):.1f}" for side in sides]
    lengths = [(f"tokens/{name}", mean) for name, mean in zip(languages or ["caption"], means, strict=True)]
    refused = [("refused", f"{split['refused']:,}")] if "refused" in split else []
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in split["dropped"].items()) or "none"
    return [*counts, *lengths, share, *refused, ("dropped", dropped)]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines: the first column aligned left, numbers right, the last column as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers, last in rows:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells, last]))
    return lines
