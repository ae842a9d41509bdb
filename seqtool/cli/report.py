"""`seqtool report RUN …`: write the report of a run, or of several runs side by side, as one HTML file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from seqtool.cli.arguments import load
from seqtool.cli.inspect import facts, runs_by_name
from seqtool.errors import InputError
from seqtool.evaluation.captions import samples_of_run
from seqtool.settings import escape, leaves
from seqtool.training import checkpoint, gradient_flow
from seqtool.training.recording import METRICS
from seqtool.training.validation import format_scores
from seqtool.training.verdict import verdict
from seqtool.view import report
from seqtool.view.plots import NORM, SINGULAR, curve_panels, gradient_panels, opacities, read_metrics

VERDICT_COLUMNS = "finding", "figure", "limit", "what it means, and what to do"
GRADIENTS_CAPTION = (
    "The gradient norm of the last token’s loss at each time step, on a log scale: the highest layer of each stack."
)


def write_report(config: DictConfig) -> None:
    """Write the report of runs. With settings of `eval`, report an evaluation, as `eval … report=FILE` does."""
    runs, output = [config.runs] if isinstance(config.runs, str) else list(config.runs or []), config.output
    keys = [override.partition("=")[0].lstrip("+") for override in HydraConfig.get().overrides.task]
    eval_overrides = [f"{name}={OmegaConf.select(config, name)}" for name in keys if name not in ("runs", "output")]
    example = "seqtool report checkpoint=PATH split=test output=FILE.html"
    if runs and eval_overrides:
        advice = f"For the report of an evaluation, name the checkpoint: {example}"
        raise InputError(f"The report of a run takes only output=FILE.html, not {eval_overrides[0]}. {advice}.")
    has_repeated_key = len(set(keys)) < len(keys)
    if not (runs or eval_overrides) or has_repeated_key or not all([*runs, output != ""]):
        raise InputError(f"report needs runs: seqtool report RUN … [output=FILE.html], or what to evaluate: {example}.")
    if runs:
        write_run_report(runs, output)
    elif output is None:
        raise InputError("The report of an evaluation needs a file name: output=FILE.html.")
    else:
        from seqtool.cli.evaluate import evaluate

        config.report, config.output = escape(output), None
        evaluate(config)


def write_run_report(paths: Sequence[str], output: str | None) -> None:
    """Write the report of these runs to `output`; for a single run, None means RUN/report.html."""
    runs = runs_by_name(paths)
    first_run = next(iter(runs.values()))
    if output is None and len(runs) > 1:
        raise InputError("A report of several runs needs a file name: output=FILE.html.")
    file = Path(output) if output is not None else first_run / "report.html"
    report.check_name(file)
    checkpoints = {name: checkpoint.find(run) for name, run in runs.items() if checkpoint.list_checkpoints(run)}
    settings = _settings(runs)  # raises InputError if a config.yaml is damaged
    verdicts = {name: list(verdict(run)) for name, run in runs.items()}
    sections: list[report.Section | None] = [
        *(  # with a line for each group of settings
            report.facts(f"Run {name}", {label: text.replace("; ", "\n") for label, text in facts(best).items()})
            for name, best in checkpoints.items()
        ),
        *(report.table(f"Verdict on {name}", VERDICT_COLUMNS, rows) for name, rows in verdicts.items() if rows),
        report.curves("Learning curves", _learning_curves(runs)),
        report.curves("Gradients through time", _gradients(runs), GRADIENTS_CAPTION),
        *(_checkpoints(name, run) for name, run in runs.items()),
        *(samples_of_run(name, run) for name, run in runs.items()),
        *settings,
    ]
    steps = [f"{name}: {best.progress['step']:,} steps" for name, best in checkpoints.items()]
    report.write(file, report.page(", ".join(runs), "; ".join(steps), sections))
    print(f"Report: {file}")


def _learning_curves(runs: Mapping[str, Path]) -> list[dict[str, Any]]:
    """A panel for each group of curves, with the curves of all runs."""
    panels, run_indices = [], {run: index for index, run in enumerate(runs)}
    for label, lines in curve_panels({name: read_metrics(run / METRICS) for name, run in runs.items()}):
        titles = list(dict.fromkeys(title for _, title in lines))
        curves, looks = {}, {}
        for (run, title), line in lines.items():
            name, curve = f"{run}: {title}" if len(runs) > 1 else title, titles.index(title)
            curves[name] = line
            looks[name] = {"colour": run_indices[run], "dash": curve} if len(runs) > 1 else {"colour": curve}
        title = titles[0] if len(titles) == 1 else label
        y_label = label.partition("\n")[0]
        panels.append(report.panel(title, "updates", y_label, curves, log=label == NORM, looks=looks))
    return panels


def _gradients(runs: Mapping[str, Path]) -> list[dict[str, Any]]:
    """A panel for each stack and each tensor of its state.

    It shows several measurements if there is one run, otherwise the last measurement of each run.
    """
    measurements: dict[str, dict[str, Any]] = {}
    looks: dict[str, dict[str, float]] = {}
    for run_index, (name, run) in enumerate(runs.items()):
        flows = gradient_flow.read(run)
        shown_flows = flows[-1:] if len(runs) > 1 else gradient_flow.evenly_spaced(flows)
        for flow, opacity in zip(shown_flows, opacities(len(shown_flows)), strict=True):
            label = f"{name}, step {flow['step']:,}" if len(runs) > 1 else f"step {flow['step']:,}"
            measurements[label], looks[label] = flow, {"colour": run_index, "opacity": opacity}
    panels = []
    for (kind, stack), norms in gradient_panels(measurements).items():
        lines = {label: (range(1, len(values) + 1), values) for label, values in norms.items() if any(values)}
        if lines and kind != SINGULAR:
            title, unit = f"∂loss/∂{kind}, {stack}", f"nats per unit of {kind}"
            panels.append(report.panel(title, "time step", unit, lines, log=True, looks=looks))
    return panels


def _checkpoints(name: str, run: Path) -> report.Section | None:
    """The checkpoints of a run and their scores as a table; None if it has none."""
    rows = []
    for path in [*checkpoint.list_checkpoints(run), *checkpoint.list_averages(run)]:
        progress = checkpoint.read(path, "record").progress
        last_scores = progress.get("last", {})
        scores = ", ".join(format_scores(last_scores)) if {"loss", "step"} <= last_scores.keys() else "not validated"
        rows.append((path.name, f"{progress['step']:,}", f"{progress.get('epoch', 0)}", scores))
    return report.table(f"Checkpoints of {name}", ("checkpoint", "step", "epochs", "validation"), rows)


def _settings(runs: Mapping[str, Path]) -> list[report.Section]:
    """The settings of all runs side by side, as a table of those that differ and a table of all."""
    files = {name: path for name, run in runs.items() if (path := run / "config.yaml").is_file()}
    values_by_setting: dict[str, dict[str, str]] = {}
    for name, path in files.items():
        for setting, value in leaves(load.__wrapped__(path)):  # not the cached content: a run may resume
            values_by_setting.setdefault(setting, {})[name] = json.dumps(value, ensure_ascii=False)
    rows = [(setting, *(values.get(name, "–") for name in files)) for setting, values in values_by_setting.items()]
    columns = "setting", *(files if len(runs) > 1 else ["value"])
    tables = {"Settings that differ": [row for row in rows if len(set(row[1:])) > 1], "Settings": rows}
    return [report.table(title, columns, table_rows) for title, table_rows in tables.items() if table_rows]
