"""One self-contained HTML file: scripts, style and data inside, nothing from elsewhere, and a policy that allows only
the script and the style that it was written with. What it shows it takes from packed JSON, as text.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from seqtool.errors import InputError, printable
from seqtool.runtime.files import replacing
from seqtool.view.report import packed

WEB = Path(__file__).with_name("web")
IMPORT = re.compile(r'import \{[^}]*\} from "\./(?P<file>[\w.]+)";\n')


def check_name(path: str | Path) -> None:
    """InputError for a name that no HTML file has: it may be that of something else."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{path}: a report is an HTML file, so its name must end in .html.")


def write(path: Path, report: Mapping[str, Any], details: Iterable[str] = ()) -> None:
    """Write a report (`web/report.js`), and packed chunks of details. No reader ever sees part of it."""
    script, style = bundle("report.js"), (WEB / "style.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    with replacing(path) as out:
        title = html.escape(printable(str(report["title"])))
        page = (WEB / "report.html").read_text(encoding="utf-8")
        out.write(page.format(policy=policy, title=title, style=style))
        for name, data in (("report", packed(report)), *((f"details-{i}", chunk) for i, chunk in enumerate(details))):
            out.write(f'<script type="application/gzip" id="{name}">{data}</script>\n')
        out.write(f"<script>{script}</script>\n</body>\n</html>\n")


def bundle(name: str) -> str:
    """A module of `web/` and those that it imports as one script: each once, after those that it needs itself.

    Their names at the top must differ, since all share one scope.
    """
    texts: dict[str, str] = {}

    def add(file: str) -> None:
        if file in texts:
            return
        text = (WEB / file).read_text(encoding="utf-8")
        for imported in IMPORT.finditer(text):
            add(imported["file"])
        texts[file] = IMPORT.sub("", text).replace("\nexport ", "\n")

    add(name)
    return "\n".join(["(async () => {", '"use strict";', *texts.values(), "})();"])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
