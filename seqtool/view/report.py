"""A report, one HTML page, as the sections that `web/report.js` draws; numbers are rounded, so that a report made again
is the same file.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seqtool.metrics.bootstrap import Estimate

Section = dict[str, Any]
DIGITS = 5  # significant ones, of what is drawn


def page(title: str, subtitle: str, sections: Iterable[Section | None]) -> dict[str, Any]:
    return {"title": title, "subtitle": subtitle, "sections": [section for section in sections if section is not None]}


def facts(title: str, rows: Mapping[str, str]) -> Section:
    return {"kind": "facts", "title": title, "rows": list(rows.items())}


def text(title: str, lines: Sequence[str]) -> Section:
    return {"kind": "text", "title": title, "lines": list(lines)}


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str | None = None) -> Section:
    listed = [list(row) for row in rows]
    return {"kind": "table", "title": title, "columns": list(columns), "rows": listed, "note": note}


def curves(title: str, panels: Sequence[Mapping[str, Any]], note: str | None = None) -> Section | None:
    """`panels`: see `panel`; None if there are none."""
    return {"kind": "curves", "title": title, "panels": list(panels), "note": note} if panels else None


def panel(
    title: str, x_label: str, y_label: str, series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, log: bool
) -> dict[str, Any]:
    """One chart of lines; `series`: x and y of each, by name."""
    lines = [{"name": name, "x": list(x), "y": [rounded(value) for value in y]} for name, (x, y) in series.items()]
    return {"title": title, "xLabel": x_label, "label": y_label, "series": lines, "log": log}


def intervals(
    title: str, x_label: str, label: str, bins: Sequence[str], series: Mapping[str, Sequence[Estimate | None]]
) -> Section:
    """Estimates in bins, for each system by name; None leaves a gap."""
    lines = [{"name": name, "points": [_point(estimate) for estimate in points]} for name, points in series.items()]
    described = {"kind": "intervals", "title": title, "xLabel": x_label, "label": label, "note": None}
    return {**described, "bins": list(bins), "series": lines}


def samples(title: str, steps: Sequence[Mapping[str, Any]]) -> Section | None:
    """What a run kept at its validations: {step, samples}; None if it kept nothing."""
    return {"kind": "samples", "title": title, "steps": list(steps)} if steps else None


def rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def _point(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    interval = {} if estimate.low is None else {"low": rounded(estimate.low), "high": rounded(estimate.high)}
    return {"value": rounded(estimate.value), **interval}
