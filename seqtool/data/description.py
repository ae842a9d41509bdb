"""The description of a cache by `prepare` and `inspect`: a title and a table of its splits."""

from collections.abc import Mapping, Sequence
from typing import Any

from seqtool.runtime.tables import columns


def describe(summary: Mapping[str, Any]) -> list[str]:
    """The lines."""
    vocabulary, languages = summary["vocabulary"], summary.get("languages", [])
    what = " → ".join(languages) or ("images and captions" if "images" in summary["splits"]["train"] else "")
    title = f"{summary['corpus']}, {what}" if what else summary["corpus"]
    sizes = f"{vocabulary.get('size', vocabulary.get('source')):,}"
    if languages and not vocabulary["joint"]:
        sizes = f"{languages[0]} {vocabulary['source']:,} and {languages[1]} {vocabulary['target']:,}"
    end = ", joint" if vocabulary.get("joint") else ""
    cells = [[("split", name), *_cells(split, languages)] for name, split in summary["splits"].items()]
    rows = [[column for column, _ in cells[0]], *([cell for _, cell in row] for row in cells)]
    return [f"{title}; vocabulary: {sizes} entries ({vocabulary['kind']}){end}", *columns(rows)]


def _cells(split: Mapping[str, Any], languages: Sequence[str]) -> list[tuple[str, str]]:
    """A split's cells by column: examples, mean lengths, the share of unknown tokens, and what is left out."""
    sides = [split["source"], split["target"]] if languages else [split]
    tokens, unknown = (sum(side[name] for side in sides) for name in ("tokens", "unknown"))
    units = [name for name in ("pairs", "images", "captions", "characters", "lines") if name in split]
    counts = [(name, f"{split[name]:,}") for name in units]
    share = ("unknown", f"{unknown / max(tokens, 1):.2%}")
    if "lines" in split:
        return [*counts, ("tokens", f"{tokens:,}"), share]
    means = [f"{side['tokens'] / max(split[units[-1]], 1):.1f}" for side in sides]
    lengths = [(f"tokens/{name}", mean) for name, mean in zip(languages or ["caption"], means, strict=True)]
    refused = [("refused", f"{split['refused']:,}")] if "refused" in split else []
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in split["dropped"].items()) or "none"
    return [*counts, *lengths, share, *refused, ("dropped", dropped)]
