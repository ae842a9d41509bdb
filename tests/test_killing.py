"""Tests of killed and resumed runs: a short run of scripts/development/kill_test.py."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_killed_and_resumed_runs_end_like_uninterrupted_runs() -> None:
    script = ROOT / "scripts" / "development" / "kill_test.py"
    command = [sys.executable, str(script), "--kills", "3", "--families", "bahdanau", "--vocabularies", "joint"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("3 kills (")
