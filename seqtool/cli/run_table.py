"""Several runs side by side: what was trained on what, how good it became, and how long that took."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqtool.errors import InputError, printable
from seqtool.metrics.scores import SCORES, score
from seqtool.metrics.tables import table
from seqtool.training import checkpoint

log = logging.getLogger("seqtool")


def trained(runs: Iterable[Path]) -> list[Path]:
    """Those that have a checkpoint."""
    return [run for run in runs if checkpoint.list_checkpoints(run)]


def table_of(runs: Sequence[Path]) -> str:
    """A line a run, with the best scores of its validation; a damaged one is warned of and left out."""
    rows, found = [], []
    for run in runs:
        try:
            one = checkpoint.find(run)
        except InputError as damaged:
            log.warning("%s", damaged)
            continue
        found.append(one.progress.get("best", {}))
        what = [_name(one.config.get(part, {})) for part in ("model", "data")]
        rows.append((run.name, *what, f"{one.progress['step']:,}", f"{one.progress.get('seconds', 0) / 60:.1f} min"))
    own = dict.fromkeys(name for best in found for name in best if "." in name)
    scores = [score(name) for name in (*SCORES, *own) if any(name in best for best in found)]
    lines = [
        (*row[:3], *(f"{best[one.name]:.{one.digits}f}" if one.name in best else "-" for one in scores), *row[3:])
        for row, best in zip(rows, found, strict=True)
    ]
    header = ("run", "model", "data", *(score.label for score in scores), "steps", "time")
    return "\n".join(table(header, [tuple(map(printable, line)) for line in lines]))


def _name(settings: Mapping[str, Any]) -> str:
    return str(settings.get("_target_", "")).rpartition(".")[2]
