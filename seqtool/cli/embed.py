"""`seqtool embed`: give a vector for each line of text, or for each image."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

import seqtool
from seqtool.predict.reading import windows
from seqtool.runtime.files import check_directory, check_outputs, finite_json, replacing, write_whole
from seqtool.settings import declarations, names, typed
from seqtool.settings.classes import modules
from seqtool.view import plots


def embed(config: DictConfig) -> None:
    """Write the vectors of lines. Standard output has the neighbours if they are requested, otherwise the vectors if
    neither output= nor plot= is.
    """
    settings = typed(declarations.Embed, config)
    declarations.check_values(settings)
    check_outputs({"output": settings.output}, [("the input", settings.input or sys.stdin.fileno())])
    if settings.plot is not None:
        check_directory(Path(settings.plot), "plot")
    machine = {name: config[name] for name in declarations.declared(declarations.InferenceMachine)}
    model: Any = seqtool.load(names(settings.checkpoint), trust=modules(settings.trust), **machine)
    texts = [line for lines in windows(settings.input, 1000) for line in lines]
    vectors = model.embed(texts, settings.vector)
    if settings.output is not None and settings.output.endswith(".npy"):
        np.save(content := BytesIO(), vectors)
        write_whole(Path(settings.output), content.getvalue())
    elif settings.output is not None or not (settings.plot or settings.neighbours):
        with nullcontext(sys.stdout) if settings.output is None else replacing(Path(settings.output)) as out:
            for text, vector in zip(texts, vectors, strict=True):
                out.write(finite_json({"text": text, "vector": [float(str(number)) for number in vector]}) + "\n")
    if settings.neighbours:
        for text, best in zip(texts, nearest(vectors, settings.neighbours), strict=True):
            print(text, *(f" {cosine:6.3f}  {texts[index]}" for index, cosine in best), sep="\n")
    if settings.plot is not None:
        file = Path(settings.plot) / f"vectors.{settings.figures}"
        plots.principal_components(vectors, texts, file)
        print(f"Figure: {file}", file=sys.stderr)


def nearest(vectors: NDArray[np.floating], count: int) -> Iterator[list[tuple[int, float]]]:
    """Yield, for each row, the indices of the nearest other rows and their cosines, the nearest first."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    for row, vector in enumerate(unit):
        cosines = unit @ vector
        order = [index for index in np.argsort(-cosines, kind="stable") if index != row]
        yield [(index, cosines[index]) for index in order[:count]]
