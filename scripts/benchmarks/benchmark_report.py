#!/usr/bin/env python
"""Measure the size of reports, and the time that a browser takes to show and to sort one.

    python scripts/benchmarks/benchmark_report.py --checkpoint runs/first --captioner runs/scenes \\
        --sentences 1000,20000 --output results/report.json

The sentences are from the built-in grammar. Times are medians of five in headless Chromium, from opening the file until
its table is visible, and from a click on a column's heading until the table is sorted. The script needs Playwright
(pip install playwright; apt-get install chromium).
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import benchmarking
from playwright.sync_api import sync_playwright

REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="a translation model of the built-in corpus")
    parser.add_argument("--captioner", help="a captioner of the built-in pictures")
    parser.add_argument("--sentences", default="1000,20000", help="numbers of sentences, separated by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="seqtool-benchmark-") as directory:
        if arguments.checkpoint is not None:
            for count in map(int, arguments.sentences.split(",")):
                data = ["data=toy", "data.train=10", f"data.test={count}", f"data.cache={directory}/cache"]
                report = make_report(directory, arguments.checkpoint, arguments.threads, [*data, "ter=false", "beam=1"])
                rows[f"{count} sentences"] = {"megabytes": megabytes(report), **browser_times(report)}
        if arguments.captioner is not None:
            report = make_report(directory, arguments.captioner, arguments.threads, [])
            rows["200 pictures"] = {"megabytes": megabytes(report)}
    record = {"machine": benchmarking.machine(arguments.threads), "rows": rows}
    print(json.dumps(record, indent=1))
    benchmarking.write(record, arguments.output)


def make_report(directory: str, checkpoint: str, threads: int, settings: list[str]) -> Path:
    """Evaluate a checkpoint and return the report."""
    report = Path(directory, "report.html")
    overrides = [f"checkpoint={checkpoint}", f"report={report}", f"threads={threads}", "split=test", *settings]
    subprocess.run([sys.executable, "-m", "seqtool", "eval", *overrides], check=True, capture_output=True)
    return report


def megabytes(report: Path) -> float:
    """The size of a report in megabytes."""
    return round(report.stat().st_size / 1e6, 2)


def browser_times(report: Path) -> dict[str, float]:
    """Measure the seconds until the report is visible, and from a click until it is sorted."""
    show_seconds, sort_seconds = [], []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(REPEATS):
            page = browser.new_page()
            start = time.perf_counter()
            page.goto(report.as_uri())
            page.locator(".rows tbody tr").first.wait_for()
            show_seconds.append(time.perf_counter() - start)
            heading = page.locator("th button").nth(3)
            start = time.perf_counter()
            heading.click()
            page.locator("th[aria-sort=descending]").wait_for()
            sort_seconds.append(time.perf_counter() - start)
            page.close()
        browser.close()
    return {"seconds_until_it_shows": median(show_seconds), "seconds_until_it_is_sorted": median(sort_seconds)}


def median(seconds: list[float]) -> float:
    return round(statistics.median(seconds), 3)


if __name__ == "__main__":
    main()
