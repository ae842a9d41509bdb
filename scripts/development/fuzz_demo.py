"""Send thousands of mutated requests to a demo. Each must get an answer; tracebacks and growing memory are failures.

    python scripts/development/fuzz_demo.py 10000 --seed 1 --checkpoint runs/first
    python scripts/development/fuzz_demo.py 10000 --seed 1 --checkpoint runs/scenes \\
        --picture data/scenes/test/00000.png
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from test_demo import Server, send_mutated_forms, send_mutated_requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, help="the number of requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", required=True, help="a translation model, or a captioner with --picture")
    parser.add_argument("--picture", type=Path, help="send forms with this picture instead of JSON")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="seqtool-fuzz-"))
    server = Server(directory, f"checkpoint={Path(arguments.checkpoint).resolve()}").ready()
    before = server.memory()
    if arguments.picture is None:
        answers = send_mutated_requests(server, arguments.count, seed=arguments.seed)
    else:
        answers = send_mutated_forms(server, arguments.picture.read_bytes(), arguments.count, seed=arguments.seed)
    statuses = Counter(answer.status for answer in answers)
    growth = server.memory() - before
    printed = server.end()
    print(f"{dict(sorted(statuses.items()))}, memory {growth:+.0f} MB")
    if "Traceback" in printed or growth > 300:
        sys.exit(f"The server failed:\n{printed[-3000:]}")


if __name__ == "__main__":
    main()
