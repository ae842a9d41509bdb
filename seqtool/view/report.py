"""Writing a report, which is one self-contained HTML file.

`web/report.js` draws its sections, and unpacks the details of a sentence when a reader opens it. Numbers are rounded,
so that a report made again is the same file. The content security policy of the file allows only its own script and
style; the script inserts data as text, never as HTML.
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
from seqtool.runtime.files import check_writable, replacing

WEB = Path(__file__).with_name("web")
IMPORT = re.compile(r'import \{[^}]*\} from "\./(?P<file>[\w.]+)";\n')
Section = dict[str, Any]
DIGITS = 5  # the number of significant digits of plotted numbers
DETAIL_DIGITS = 3  # decimal places of attention weights and significant digits of other details, as the page shows
SIZE = 100  # the number of sentences in a chunk of details


def page(title: str, subtitle: str, sections: Iterable[Section | None]) -> dict[str, Any]:
    """A report of these sections; None is left out."""
    return {"title": title, "subtitle": subtitle, "sections": [section for section in sections if section is not None]}


def facts(title: str, rows: Mapping[str, str]) -> Section:
    """A section of facts, by name."""
    return {"kind": "facts", "title": title, "rows": list(rows.items())}


def text(title: str, lines: Sequence[str]) -> Section:
    """A section of lines of text."""
    return {"kind": "text", "title": title, "lines": list(lines)}


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str | None = None) -> Section:
    """A section with a table, and a note under it."""
    row_lists = [list(row) for row in rows]
    return {"kind": "table", "title": title, "columns": list(columns), "rows": row_lists, "note": note}


def curves(title: str, panels: Sequence[Mapping[str, Any]], note: str | None = None) -> Section | None:
    """A section of charts, each made by `panel`; None if there are none."""
    return {"kind": "curves", "title": title, "panels": list(panels), "note": note} if panels else None


def panel(
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    log: bool,
    looks: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """A chart of lines.

    series: the x and y values of each line, by its name
    log: whether the y axis is logarithmic
    looks: for each line, the number of its `colour` and of its `dash`, and its `opacity`; None gives each line the next
        colour
    """
    lines = [
        {"name": name, "x": list(x), "y": [rounded(value) for value in y], **(looks or {}).get(name, {})}
        for name, (x, y) in series.items()
    ]
    return {"title": title, "xLabel": x_label, "label": y_label, "series": lines, "log": log}


def intervals(
    title: str, x_label: str, label: str, bins: Sequence[str], series: Mapping[str, Sequence[Estimate | None]]
) -> Section:
    """A section with a chart of estimates and their intervals.

    bins: the labels of the bins on the x axis
    series: for each system, by its name, its estimate in each bin; None leaves a gap
    """
    lines = [{"name": name, "points": [_point(estimate) for estimate in points]} for name, points in series.items()]
    labels = {"kind": "intervals", "title": title, "xLabel": x_label, "label": label, "note": None}
    return {**labels, "bins": list(bins), "series": lines}


def samples(title: str, steps: Sequence[Mapping[str, Any]], pictures: Mapping[str, str]) -> Section | None:
    """A section of the samples of a run's validations, each {step, samples}; None if there are none.

    pictures: data URLs of the images that samples name, by name
    """
    return {"kind": "samples", "title": title, "steps": list(steps), "pictures": dict(pictures)} if steps else None


def inside(trace: Mapping[str, Any], attributions: Sequence[Mapping[str, Any]], picture: str | None) -> list[Section]:
    """Sections of what a model computed for an example, and of what its tokens depend on.

    trace: the record of `predict.trace.Trace`
    attributions: the records of `predict.attribution.Attribution`, by several methods
    picture: the data URL of a captioner's picture
    """
    title = "What each token depends on"
    return [
        {"kind": "states", "title": "States, gates and heads", "trace": trace, "note": None},
        {"kind": "attributions", "title": title, "records": list(attributions), "picture": picture, "note": None},
    ]


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    """Round a value to this number of significant digits; return None if it is None or not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


class Details:
    """The details of each sentence, which a report shows only when a reader opens the sentence."""

    def __init__(self) -> None:
        self._packed_chunks: list[str] = []  # the chunks of SIZE sentences
        self._sentences: list[dict[str, Any]] = []  # the sentences after the last chunk

    def add(
        self,
        *,
        source: Sequence[str] = (),
        target: Sequence[str] = (),
        weights: NDArray[np.floating] | None = None,
        predicted: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Add the details of a sentence.

        source, target: its words
        weights: their attention, target × source, or None
        predicted: the predictions for each token, in the form of `predictor.prediction_records`, or None
        """
        sentence: dict[str, Any] = {}
        if weights is not None and weights.size:
            sentence |= {"source": list(source), "target": list(target), "weights": rounded_weights(weights)}
        if predicted:
            text = json.dumps(predicted)
            sentence["predicted"] = json.loads(text, parse_float=lambda number: rounded(float(number), DETAIL_DIGITS))
        self._sentences.append(sentence)
        if len(self._sentences) == SIZE:
            self._packed_chunks.append(pack(self._sentences))
            self._sentences = []

    def chunks(self) -> Iterator[str]:
        """The packed details, in chunks of `SIZE` sentences."""
        yield from self._packed_chunks
        if self._sentences:
            yield pack(self._sentences)


def check_name(path: str | Path) -> None:
    """Raise InputError unless a report can be written to the path, whose name must end in .html or .htm: a file of
    another kind might be overwritten.
    """
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{path}: a report is an HTML file, so its name must end in .html.")
    check_writable(Path(path))


def write(path: Path, report: Mapping[str, Any], details: Iterable[str] = ()) -> None:
    """Write a report and packed chunks of details as an HTML file, which is complete as soon as it exists."""
    script, style = bundle("report.js"), (WEB / "style.css").read_text(encoding="utf-8")
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    allowed = "style-src 'sha256-{}'; script-src 'sha256-{}'".format(*digests)
    policy = f"default-src 'none'; img-src data:; {allowed}; base-uri 'none'"
    with replacing(path) as out:
        title = html.escape(printable(str(report["title"])))
        page = (WEB / "report.html").read_text(encoding="utf-8")
        out.write(page.format(policy=policy, title=title, style=style))
        for name, data in (("report", pack(report)), *((f"details-{i}", chunk) for i, chunk in enumerate(details))):
            out.write(f'<script type="application/gzip" id="{name}">{data}</script>\n')
        out.write(f"<script>{script}</script>\n</body>\n</html>\n")


def bundle(name: str) -> str:
    """A module of `web/` and the modules that it imports as one script, where each module follows its imports.

    All modules share one scope, so their top-level names must differ.
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


def pack(value: Any) -> str:
    """A JSON value, compressed, as text that HTML can contain; equal values give equal text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    content = text.encode("utf-8", "backslashreplace")  # half of a surrogate pair becomes its escape sequence
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def rounded_weights(weights: NDArray[np.floating]) -> list[list[float]]:
    """Attention weights with as many decimal places as the page shows."""
    return cast(list[list[float]], np.asarray(weights, float).round(DETAIL_DIGITS).tolist())


def _point(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else {name: rounded(getattr(estimate, name)) for name in ("value", "low", "high")}
