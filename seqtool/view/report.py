"""A report, one self-contained HTML file: the sections that `web/report.js` draws, and packed details of sentences,
which it reads when one is opened. Numbers are rounded, so that a report made again is the same file.

Scripts, style and data are inside, nothing is from elsewhere, and a policy allows only the script and the style that it
was written with. What it shows it takes from packed JSON, as text.
"""

import base64
import gzip
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from seqtool.errors import InputError, printable
from seqtool.metrics.bootstrap import Estimate
from seqtool.runtime.files import replacing

WEB = Path(__file__).with_name("web")
IMPORT = re.compile(r'import \{[^}]*\} from "\./(?P<file>[\w.]+)";\n')
Section = dict[str, Any]
DIGITS = 5  # significant ones, of what is drawn
SHOWN = 3  # of weights after the point, and of other numbers of details in all: as many as the page shows
SIZE = 100  # sentences in a chunk of details


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


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


class Details:
    """What a report shows of each sentence only when it is opened."""

    def __init__(self) -> None:
        self._packed: list[str] = []
        self._sentences: list[dict[str, Any]] = []  # those after the last packed chunk

    def add(
        self,
        *,
        source: Sequence[str] = (),
        target: Sequence[str] = (),
        weights: NDArray[np.floating] | None = None,
        predicted: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """One more sentence.

        source, target: its words.
        weights: their attention, target × source, or None.
        predicted: what was expected at each token, in the form of `predictor.expectations`, or None.
        """
        sentence: dict[str, Any] = {}
        if weights is not None and weights.size:
            sentence |= {"source": list(source), "target": list(target), "weights": rounded_weights(weights)}
        if predicted:
            text = json.dumps(predicted)
            sentence["predicted"] = json.loads(text, parse_float=lambda number: rounded(float(number), SHOWN))
        self._sentences.append(sentence)
        if len(self._sentences) == SIZE:
            self._packed.append(packed(self._sentences))
            self._sentences = []

    def described(self) -> dict[str, Any]:
        """What the page must know to find a sentence."""
        return {"size": SIZE}

    def chunks(self) -> Iterator[str]:
        """The packed details of `SIZE` sentences each."""
        yield from self._packed
        if self._sentences:
            yield packed(self._sentences)


def check_name(path: str | Path) -> None:
    """InputError for a name that no HTML file has: it may be that of something else."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{path}: a report is an HTML file, so its name must end in .html.")


def write(path: Path, report: Mapping[str, Any], details: Iterable[str] = ()) -> None:
    """Write a report (`web/report.js`), and packed chunks of details. No reader ever sees part of it."""
    script, style = bundle("report.js"), (WEB / "style.css").read_text(encoding="utf-8")
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    allowed = "style-src 'sha256-{}'; script-src 'sha256-{}'".format(*digests)
    policy = f"default-src 'none'; img-src data:; {allowed}; base-uri 'none'"
    with replacing(path) as out:
        title = html.escape(printable(str(report["title"])))
        page = (WEB / "report.html").read_text(encoding="utf-8")
        out.write(page.format(policy=policy, title=title, style=style))
        for name, data in (("report", packed(report)), *((f"details-{i}", chunk) for i, chunk in enumerate(details))):
            out.write(f'<script type="application/gzip" id="{name}">{data}</script>\n')
        out.write(f"<script>{script}</script>\n</body>\n</html>\n")


def bundle(name: str) -> str:
    """A module of `web/` and those that it imports as one script: each once, after those that it needs itself.

    Their names at the top must differ, since all share one scope.
    """
    texts: dict[str, str] = {}

    def add(file: str) -> None:
        if file in texts:
            return
        text = (WEB / file).read_text(encoding="utf-8")
        for imported in IMPORT.finditer(text):
            add(imported["file"])
        texts[file] = IMPORT.sub("", text).replace("\nexport ", "\n")

    add(name)
    return "\n".join(["(async () => {", '"use strict";', *texts.values(), "})();"])


def packed(value: Any) -> str:
    """A value of JSON as text that HTML can hold; the same value always gives the same text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    content = text.encode("utf-8", "backslashreplace")  # a lone surrogate is written as its escape
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def rounded_weights(weights: NDArray[np.floating]) -> list[list[float]]:
    return cast(list[list[float]], np.asarray(weights, float).round(SHOWN).tolist())


def _point(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    interval = {} if estimate.low is None else {"low": rounded(estimate.low), "high": rounded(estimate.high)}
    return {"value": rounded(estimate.value), **interval}
