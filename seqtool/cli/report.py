"""`seqtool report RUN …`: a run, or several beside each other, as one HTML file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from seqtool.cli.inspect import facts, named
from seqtool.errors import InputError
from seqtool.settings import escape
from seqtool.training import checkpoint, gradient_flow
from seqtool.training.recording import FLOW, METRICS, SAMPLES
from seqtool.training.validation import told
from seqtool.training.verdict import verdict
from seqtool.view import html, report
from seqtool.view.run_plots import NORM, panels_of, read_metrics

FLOWS = 6  # measurements of the gradient that are drawn of one run


def write_report(config: DictConfig) -> None:
    """Write the report of runs, or with other settings that of an evaluation: `eval … report=FILE`."""
    runs, output = [config.runs] if isinstance(config.runs, str) else list(config.runs or []), config.output
    written = [override.partition("=")[0].lstrip("+") for override in HydraConfig.get().overrides.task]
    others = [f"{name}={OmegaConf.select(config, name)}" for name in written if name not in ("runs", "output")]
    if runs and others:
        raise InputError(
            f"The report of a run takes only output=FILE.html, not {others[0]}; that of an evaluation takes its "
            "checkpoint by name: seqtool report checkpoint=PATH split=test output=FILE.html."
        )
    if not (runs or others) or len({*written}) < len(written) or not all([*runs, output != ""]):
        raise InputError(
            "report needs runs: seqtool report RUN … [output=FILE.html], or what to evaluate: "
            "seqtool report checkpoint=PATH split=test output=FILE.html."
        )
    if runs:
        of_runs(runs, output)
    elif output is None:
        raise InputError("The report of an evaluation needs a place: output=FILE.html.")
    else:
        from seqtool.cli.evaluate import evaluate

        config.report, config.output = escape(output), None
        evaluate(config)


def of_runs(paths: Sequence[str], output: str | None) -> None:
    """Write the report of these runs, in their place by default: RUN/report.html."""
    runs = named(paths)
    first = next(iter(runs.values()))
    if output is None and len(runs) > 1:
        raise InputError("A report of several runs needs a place: output=FILE.html.")
    file = Path(output) if output is not None else first / "report.html"
    html.check_name(file)
    found = {name: checkpoint.find(run) for name, run in runs.items() if checkpoint.list_checkpoints(run)}
    sections: list[report.Section | None] = [
        *(report.facts(f"Run {name}", facts(one)) for name, one in found.items()),
        *(_verdict(name, run) for name, run in runs.items()),
        report.curves("Learning curves", _learning_curves(runs)),
        report.curves("Gradients through time", _gradients(runs), GRADIENTS),
        *(_checkpoints(name, run) for name, run in runs.items()),
        *(report.samples(f"Samples of {name}", _samples(run)) for name, run in runs.items()),
        *_settings(runs),
    ]
    trained = [f"{name}: {one.progress['step']:,} steps" for name, one in found.items()]
    html.write(file, report.page(", ".join(runs), "; ".join(trained), sections))
    print(f"Report: {file}")


GRADIENTS = (
    "The norm of the last token’s gradient at each time step, on a logarithmic scale: the highest layer of each stack."
)


def _learning_curves(runs: Mapping[str, Path]) -> list[dict[str, Any]]:
    series = {name: read_metrics(run / METRICS) for name, run in runs.items()}
    panels = []
    for label, names in panels_of(series):
        lines = {}
        for run, known in series.items():
            for name, said in names.items():
                if name in known:
                    lines[f"{run}: {said}" if len(series) > 1 else said] = known[name]
        title = next(iter(names.values())) if len(names) == 1 else label
        panels.append(report.panel(title, "updates", label, lines, log=label == NORM))
    return panels


def _gradients(runs: Mapping[str, Path]) -> list[dict[str, Any]]:
    """A panel for each stack and each tensor of its state."""
    panels: dict[str, dict[str, tuple[Sequence[float], Sequence[float]]]] = {}
    for name, run in runs.items():
        measured = gradient_flow.read(run / FLOW) if (run / FLOW).is_file() else []
        shown = measured[:: -max(1, len(measured) // FLOWS)][::-1] if len(runs) == 1 else measured[-1:]
        for one in shown:
            label = f"step {one['step']:,}" if len(runs) == 1 else f"{name}, step {one['step']:,}"
            highest = {stack.rpartition(".")[0]: state for stack, state in one["gradients"].items()}
            for stack, state in highest.items():
                for letter, norms in state.items():
                    if any(norms):
                        panels.setdefault(f"∂loss/∂{letter}, {stack}", {})[label] = range(1, len(norms) + 1), norms
    return [report.panel(title, "time step", "norm", lines, log=True) for title, lines in panels.items()]


def _verdict(name: str, run: Path) -> report.Section | None:
    """None if there is nothing to say."""
    columns = "finding", "figure", "limit", "what it means, and what to do"
    rows = list(verdict(run))
    return report.table(f"Verdict on {name}", columns, rows) if rows else None


def _checkpoints(name: str, run: Path) -> report.Section | None:
    rows = []
    for path in [*checkpoint.list_checkpoints(run), *checkpoint.list_averages(run)]:
        progress = checkpoint.find(path).progress
        last = progress.get("last", {})
        said = ", ".join(told(last)) if {"loss", "step"} <= last.keys() else "not validated"
        rows.append((path.name, f"{progress['step']:,}", f"{progress.get('epoch', 0)}", said))
    return report.table(f"Checkpoints of {name}", ("checkpoint", "step", "epochs", "validation"), rows)


def _samples(run: Path) -> list[dict[str, Any]]:
    """What was kept, without a last line that was cut short."""
    path = run / SAMPLES
    if not path.is_file():
        return []
    lines, found = path.read_text(encoding="utf-8").split("\n"), []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line or "null")
        except ValueError as error:
            if number == len(lines):
                break
            raise InputError(f"{path} line {number:,} is not JSON.") from error
        if record is None:
            continue
        if not isinstance(record, dict) or not _are_samples(record):
            raise InputError(f"{path} line {number:,} holds no samples.")
        found.append(record)
    return found


def _are_samples(record: Mapping[str, Any]) -> bool:
    samples = record.get("samples")
    return (
        isinstance(record.get("step"), int)
        and isinstance(samples, list)
        and all(isinstance(one, dict) and all(isinstance(text, str) for text in one.values()) for one in samples)
    )


def _settings(runs: Mapping[str, Path]) -> list[report.Section]:
    """The settings of all runs side by side; those that differ stand first in a table of their own."""
    files = {name: path for name, run in runs.items() if (path := run / "config.yaml").is_file()}
    found: dict[str, dict[str, str]] = {}
    for name, path in files.items():
        for key, value in _leaves(OmegaConf.to_container(OmegaConf.load(path), resolve=False), ""):
            found.setdefault(key, {})[name] = json.dumps(value, ensure_ascii=False)
    rows = [(key, *(values.get(name, "–") for name in files)) for key, values in found.items()]
    columns = "setting", *(files if len(runs) > 1 else ["value"])
    differing = [row for row in rows if len(set(row[1:])) > 1]
    tables = [("Settings that differ", differing), ("Settings", rows)]
    return [report.table(title, columns, some) for title, some in tables if some]


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        yield name, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{name}.{key}" if name else str(key))
