"""The description of a cache by `prepare` and `inspect`: a title and a table of its splits."""

from collections.abc import Mapping, Sequence
from typing import Any

from seqtool.runtime.tables import columns


def describe(summary: Mapping[str, Any]) -> list[str]:
    """The lines."""
    vocabulary, languages = summary["vocabulary"], summary.get("languages", [])
    what = "" if summary.get("holds") == "text" else f", {' → '.join(languages) or 'images and captions'}"
    sizes = f"{vocabulary.get('size', vocabulary.get('source')):,}"
    if languages and not vocabulary["joint"]:
        sizes = f"{languages[0]} {vocabulary['source']:,} and {languages[1]} {vocabulary['target']:,}"
    end = ", joint" if vocabulary.get("joint") else ""
    cells = [{"split": name, **_cells(split, languages)} for name, split in summary["splits"].items()]
    return [
        f"{summary['corpus']}{what}; vocabulary: {sizes} entries ({vocabulary['kind']}){end}",
        *columns([list(cells[0]), *(list(row.values()) for row in cells)]),
    ]


def _cells(split: Mapping[str, Any], languages: Sequence[str]) -> dict[str, str]:
    """A split's cells by column: examples, mean lengths, the share of unknown tokens, and what is left out."""
    sides = [split["source"], split["target"]] if languages else [split]
    tokens, unknown = (sum(side[name] for side in sides) for name in ("tokens", "unknown"))
    units = [name for name in ("pairs", "images", "captions", "characters", "lines") if name in split]
    cells = {name: f"{split[name]:,}" for name in units}
    share = f"{unknown / max(tokens, 1):.2%}"
    if "lines" in split:
        return {**cells, "tokens": f"{tokens:,}", "unknown": share}
    for name, side in zip(languages or ["caption"], sides, strict=True):
        cells[f"tokens/{name}"] = f"{side['tokens'] / max(split[units[-1]], 1):.1f}"
    cells["unknown"] = share
    if "refused" in split:
        cells["refused"] = f"{split['refused']:,}"
    cells["dropped"] = ", ".join(f"{count:,} {reason}" for reason, count in split["dropped"].items()) or "none"
    return cells
