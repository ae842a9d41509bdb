"""What `prepare` and `inspect` say of a cache: a title and a table of its splits."""

from collections.abc import Mapping, Sequence
from typing import Any


def describe(summary: Mapping[str, Any]) -> list[str]:
    """The lines."""
    known, kind = summary["vocabulary"], summary["vocabulary"]["kind"]
    if summary.get("holds") == "text":
        rows = [["split", "characters", "lines", "tokens", "unknown"]]
        for name, split in summary["splits"].items():
            shares = f"{split['unknown'] / max(split['tokens'], 1):.2%}"
            rows.append([name, *(f"{split[what]:,}" for what in rows[0][1:-1]), shares])
        return [f"{summary['corpus']}; vocabulary: {known['size']:,} entries ({kind})", *table(rows)]
    if "languages" in summary:
        source, target = summary["languages"]
        what = f"{source} → {target}"
        sizes = f"{source} {known['source']:,} and {target} {known['target']:,} entries ({kind})"
        if known["joint"]:
            sizes = f"{known['source']:,} entries ({kind}), joint"
        columns = ["pairs", f"tokens/{source}", f"tokens/{target}", "unknown"]
    else:
        what, sizes = "images and captions", f"{known['size']:,} entries ({kind})"
        columns = ["images", "captions", "tokens/caption", "unknown", "refused"]
    rows = [["split", *columns, "dropped"]]
    rows += [[name, *_numbers(split), _reasons(split["dropped"])] for name, split in summary["splits"].items()]
    return [f"{summary['corpus']}, {what}; vocabulary: {sizes}", *table(rows)]


def _numbers(split: Mapping[str, Any]) -> list[str]:
    """Examples, mean lengths, the share of unknown tokens, and of images also how many there are and are refused."""
    is_text = "pairs" in split
    count = split["pairs" if is_text else "captions"]
    sides = [split["source"], split["target"]] if is_text else [split]
    tokens, unknown = (sum(side[name] for side in sides) for name in ("tokens", "unknown"))
    lengths = [f"{side['tokens'] / max(count, 1):.1f}" for side in sides]
    numbers = [f"{count:,}", *lengths, f"{unknown / max(tokens, 1):.2%}"]
    return numbers if is_text else [f"{split['images']:,}", *numbers, f"{split['refused']:,}"]


def _reasons(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()) or "none"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines: the first column to the left, numbers to the right, the last column as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers, last in rows:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells, last]))
    return lines
