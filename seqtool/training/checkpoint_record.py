"""Checks of a checkpoint's record, checkpoint.json: nothing in it is taken on trust."""

import re
from collections.abc import Mapping
from typing import Any

FORMAT = 1
AVERAGE = "average-"
CHECKPOINT = re.compile(rf"step-[0-9]+(-stopped|-saved)?|{AVERAGE}[0-9]+")  # a name; no path to another directory
COUNTS = ("epoch", "position", "stale", "since_halving", "plateaus", "skipped", "skipped_in_a_row")
NEEDED = {"best": {"checkpoint", "step", "loss"}, "yardstick": {"loss"}}  # unless empty
LARGEST = 2**53  # the largest number allowed


def check_record(record: Mapping[str, Any]) -> None:
    """Raise TypeError, ValueError or KeyError unless every value in the record is of the right kind."""
    config, progress = record["config"], record["progress"]
    scores = [progress.get(name, {}) for name in ("best", "last", "yardstick")]
    groups = [config["model"], record["versions"], record.get("data", {}), progress.get("meter", {}), *scores]
    groups += [config.get(name, {}) for name in ("data", "optim", "schedule")]
    if record["format"] != FORMAT or not isinstance(record.get("task"), str | None):
        raise TypeError
    if not all(isinstance(group, dict) for group in groups):
        raise TypeError
    for name, needed in NEEDED.items():
        if progress.get(name) and not needed <= progress[name].keys():
            raise KeyError(name)
    names = [one["checkpoint"] for one in scores if "checkpoint" in one] + progress.get("scheduled", [])
    names += [progress["good"]] if progress.get("good") is not None else []
    if not all(CHECKPOINT.fullmatch(name) for name in names):
        raise ValueError
    numbers = [value for one in scores for name, value in one.items() if name != "checkpoint"]
    numbers += [progress.get("seconds", 0), *progress.get("meter", {}).values()]
    counts = [progress["step"], *(progress.get(name, 0) for name in COUNTS)]
    whole = [number for number in (*numbers, *counts) if not isinstance(number, float)]  # a float may be infinite
    if not all(isinstance(number, int) and abs(number) <= LARGEST for number in whole):
        raise TypeError
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise TypeError
