"""METEOR and SPICE, which are Java programs called through pycocoevalcap, if it and Java are installed."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module

from seqtool.metrics.captions import tokenized
from seqtool.runtime.files import printing_to_stderr

LAST_JDK_OF_SPICE = 14  # its libraries use classes that JDK 15 and later removed or closed


def java_scores(
    hypotheses: Mapping[str, str], references: Mapping[str, Sequence[str]], *, tokenize: str
) -> tuple[dict[str, float], list[str]]:
    """`meteor` and `spice` (0–1), and a sentence about each one that is not available."""
    try:
        meteor = import_module("pycocoevalcap.meteor.meteor").Meteor
        spice = import_module("pycocoevalcap.spice.spice").Spice
    except ImportError:
        return {}, ["METEOR and SPICE need pycocoevalcap: pip install pycocoevalcap."]
    if shutil.which("java") is None:
        return {}, ["METEOR and SPICE need Java, which is not on the PATH."]
    texts = {image: _lines([caption], tokenize) for image, caption in hypotheses.items()}
    alternatives = {image: _lines(references[image], tokenize) for image in hypotheses}
    scores: dict[str, float] = {}
    problems: list[str] = []
    output = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    number = re.search(r'version "(?:1\.)?(\d+)', output)  # 8 of 1.8.0, 17 of 17.0.15
    version = int(number[1]) if number else 0
    for name, make in (("meteor", meteor), ("spice", spice)):
        if name == "spice" and version > LAST_JDK_OF_SPICE:
            problems.append(f"SPICE does not run on Java {version}: it needs {LAST_JDK_OF_SPICE} or older.")
            continue
        scorer = None
        try:
            with printing_to_stderr(), redirect_stdout(sys.stderr):
                scorer = make()
                scores[name] = float(scorer.compute_score(alternatives, texts)[0])
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            problems.append(f"{name.upper()} failed in Java: {str(error).rstrip('.')}.")
            lock = getattr(scorer, "lock", None)
            if lock is not None and lock.locked():  # ending METEOR would wait for this lock for ever
                lock.release()
    return scores, problems


def _lines(captions: Sequence[str], tokenize: str) -> list[str]:
    """Tokenised captions without METEOR's separators: line ends, and ||| between texts."""
    return [" ".join(caption.replace("|||", " ").split()) for caption in tokenized(captions, tokenize)]
