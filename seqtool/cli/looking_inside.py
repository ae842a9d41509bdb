"""`seqtool inspect RUN text=…` and the like: what a model computes inside, for an example or for a file of them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from seqtool import tasks
from seqtool.errors import InputError
from seqtool.evaluation.captions import data_url
from seqtool.predict.attribution import METHODS
from seqtool.runtime.files import check_directory, check_outputs, check_writable, read_lines, write_whole
from seqtool.runtime.tables import table
from seqtool.runtime.task_table import TASKS
from seqtool.settings import declarations, names
from seqtool.settings.classes import modules
from seqtool.training import checkpoint
from seqtool.view import plots, report

SETTINGS = ("text", "pair", "image", "input", "units", "heads")
EXAMPLES: dict[str, Sequence[set[str]]] = {  # the settings that a model of each task takes together
    "translation": ({"text"}, {"pair"}, {"input", "units"}, {"input", "heads"}),
    "captioning": ({"image"}, {"image", "text"}),
    "language_modelling": ({"text"}, {"input", "units"}, {"input", "heads"}),
}
LONGEST = 300  # tokens of an example that is drawn; its attributions take minutes
COLOURED, COLOURED_PAIRS = 5000, 50  # the characters, or the pairs, that are shown in the colours of a unit


def asked(settings: declarations.Inspect) -> set[str]:
    """The settings that ask to look inside a model."""
    return {name for name in SETTINGS if getattr(settings, name) not in (None, False)}


def look_inside(settings: declarations.Inspect, path: Path) -> None:
    """Show what a model computes for one example, or for a file of examples."""
    opened = checkpoint.find(path, trust=modules(settings.trust))
    given = asked(settings)
    possible = EXAMPLES.get(opened.model_task, [*chain(*EXAMPLES.values())])  # a user's task may read any of them
    if given not in possible:
        choices = " or ".join(" and ".join(f"{name}=" for name in sorted(names)) for names in possible)
        together = " and ".join(f"{name}=" for name in SETTINGS if name in given)
        raise InputError(f"{path} holds {TASKS[opened.model_task].model}: give {choices}, not {together}.")
    suffixes = ".npz or .html" if settings.input is None else ".json"
    if settings.output is not None and Path(settings.output).suffix not in suffixes.split():
        raise InputError(f"output={settings.output} must be a name that ends in {suffixes}.")
    if settings.output is not None:
        check_writable(Path(settings.output))
    if settings.plot is not None:
        check_directory(Path(settings.plot), "plot")
    pair = [] if settings.pair is None else [part.strip() for part in settings.pair.split("|||")]
    if settings.pair is not None and len(pair) != 2:
        raise InputError(f"pair= must be a sentence and its translation separated by |||, not '{settings.pair}'.")
    if settings.heads and (settings.output, settings.plot) != (None, None):
        raise InputError("heads=true prints a table: leave output= and plot= out.")
    predictor: Any = tasks.task_of_checkpoint(opened).load([opened])
    if settings.input is None:
        example = settings.image, *pair, settings.text
        show_example(settings, predictor, [part for part in example if part is not None])
        return
    files = names(settings.input)
    if len(files) != len(predictor.sides):
        raise InputError(f"input={','.join(files)} must name a file of each side: {' and '.join(predictor.sides)}.")
    check_outputs({"output": settings.output}, [(f"input={file}", file) for file in files])
    texts = [list(read_lines(Path(file), with_ends=len(files) == 1)) for file in files]
    if settings.heads:
        rows = [[*map(str, head[:-1]), f"{head.rise:.4f}"] for head in predictor.head_ranking(*texts)]
        print("\n".join(table(["attention", "layer", "head", "nats a token"], rows)))
    else:
        tell_unit(settings, predictor, texts)


def show_example(settings: declarations.Inspect, predictor: Any, example: Sequence[str]) -> None:
    """Print the names, axes and shapes of the arrays that a model computes for one example. On request, write the
    arrays, or a page that shows them and what each token depends on, and draw them.
    """
    trace, output = predictor.trace(*example), settings.output
    longest = max(map(len, trace.labels.values()))
    if longest > LONGEST and (settings.plot is not None or str(output).endswith(".html")):
        raise InputError(f"A text has {longest:,} tokens, and at most {LONGEST} are drawn: output=trace.npz takes all.")
    rows = [[name, " × ".join(trace.axes[name]), " × ".join(map(str, trace[name].shape))] for name in trace]
    print("\n".join(table(["array", "axes", "shape"], rows)))
    if output is not None and output.endswith(".npz"):
        trace.save(output)
        print(f"Arrays: {output}")
    elif output is not None:
        methods = [name for name in METHODS if name != "attention" or predictor.attends]
        attributions = [predictor.attribute(*example, method=method) for method in methods]
        records, pixels = [attribution.record() for attribution in attributions], attributions[0].example.pixels
        sections = report.inside(trace.record(), records, None if pixels is None else data_url(pixels))
        report.write(Path(output), report.page(f"Inside {predictor.name}", " ||| ".join(example), sections))
        print(f"Page: {output}")
    if settings.plot is not None:
        place = settings.plot, settings.figures
        if not (figures := [*trace.plot(*place), *trace.plot_heads(*place)]):
            raise InputError(f"{predictor.name} has no states or heads to draw: leave plot= out.")
        print(f"Figures: {', '.join(map(str, figures))}")


def tell_unit(settings: declarations.Inspect, predictor: Any, texts: Sequence[list[str]]) -> None:
    """Print which unit tells a property of texts best, and write a page with their beginning, coloured by it.

    texts: the lines of each side; those of a language model are one text
    """
    text = "".join(texts[0])
    unit = predictor.find_unit(*(texts if len(texts) > 1 else [text]), settings.units)
    print(unit)
    if settings.output is not None:
        write_whole(Path(settings.output), (json.dumps(asdict(unit), indent=1) + "\n").encode())
    if settings.plot is not None:
        tensor, _, i = unit.name.removesuffix("]").partition("[")
        examples = list(zip(*texts, strict=True))[:COLOURED_PAIRS] if len(texts) > 1 else [(text[:COLOURED],)]
        traces = [predictor.trace(*example) for example in examples]
        pieces = [piece for trace in traces for piece in [*trace.labels["target"][1:], "\n"]]
        values = [float(value) for trace in traces for value in [*np.tanh(trace[tensor][1:, int(i)]), 0]]
        page = Path(settings.plot, f"{settings.units}.html")
        plots.coloured_text(pieces, values, page, title=f"{unit.name}: {settings.units}")
        print(f"Page: {page}")
