#!/usr/bin/env python
"""Score trained models in fp32 and in int8, and print what int8 costs.

    python scripts/int8_costs.py builtin/words builtin/text runs/multi30k-bahdanau --output results/int8.json

A checkpoint is scored as `seqtool eval checkpoint=…` does it, with BLEU, CIDEr-D, or nats a token; settings for it
follow after a comma: runs/flickr8k,split=valid,data.directory=data/flickr8k. No instructions for 8-bit integers are
needed: without them, their products are computed in fp32, which is exact for the sizes of layers that are published
here (up to 1,040 inputs), so the scores are those of any processor whose own product of int8 is exact, too, which
tests/models/test_quantised.py checks where there is one. scripts/int8_models.sh trains models to score.
"""

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seqtool.cli.main import config_directory, run
from seqtool.data.directories import versions
from seqtool.models.fast import private, quantised
from seqtool.runtime import precision

EXACT_INPUTS = (1 << 24) // 127**2  # from more numbers, sums might not be integers that fp32 holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT[,SETTING…]")
    parser.add_argument("--output", type=Path, help="write the scores to this JSON file")
    arguments = parser.parse_args()
    if not precision.multiplies_int8():
        emulate_products()
    rows = {}
    for item in arguments.checkpoints:
        checkpoint, *settings = item.split(",")
        fp32, int8 = (score(checkpoint, kind, settings) for kind in ("fp32", "int8"))
        name, value = next(iter(fp32.items()))
        rows[checkpoint] = {"score": name, "fp32": value, "int8": int8[name], "cost": int8[name] - value}
        if (metrics := Path(checkpoint) / "metrics.jsonl").exists():
            seconds = json.loads(metrics.read_text("utf-8").splitlines()[-1])["seconds"]
            rows[checkpoint]["minutes of training"] = round(seconds / 60, 1)
        print(f"{checkpoint:30}  {name:12}  {value:9.4f}  {int8[name]:9.4f}  {int8[name] - value:+.4f}", flush=True)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps({"versions": versions(), "rows": rows}, indent=1) + "\n", "utf-8")


def emulate_products() -> None:
    """Have any processor compute the products of integers, in fp32."""
    multiply: Callable[..., Any] = private.integer_product

    def product(x: Any, w: Any) -> Any:
        return x.float() @ w.float() if x.shape[1] <= EXACT_INPUTS else multiply(x, w)

    private.integer_product = product
    quantised.WIDE = sys.maxsize
    precision.multiplies_int8 = lambda: True  # type: ignore[assignment]


def score(checkpoint: str, kind: str, settings: list[str]) -> dict[str, float]:
    """The score of a checkpoint in this precision, by its name."""
    command = ["eval", f"checkpoint={checkpoint}", f"precision={kind}", *settings]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        if status := run([*command, "bootstrap=0", "format=json", "device=cpu"], config_directory()):
            sys.exit(status)
    record = json.loads(printed.getvalue())
    if "system" in record:
        return {"BLEU": record["system"]["bleu"]["value"]}
    return {name: record[key] for name, key in (("nats a token", "loss"), ("CIDEr-D", "cider_d")) if key in record}


if __name__ == "__main__":
    main()
