"""Shows notebooks as pages: their text, code and outputs, as they are stored; nothing is run."""

import json

from docutils.nodes import document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

OUTPUT = "![What the cell above draws](data:image/png;base64,{})"


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown page that it amounts to."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: document) -> None:
        parts = [part for cell in json.loads(inputstring)["cells"] for part in markdown(cell)]
        super().parse("\n\n".join(parts), document)


def markdown(cell: dict) -> list[str]:
    """A cell, and below it what it printed and drew, in Markdown."""
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [text]
    parts = [f"```python\n{text}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            parts.append(OUTPUT.format("".join(data["image/png"]).replace("\n", "")))
        elif output.get("name") != "stderr":
            printed = "".join(data.get("text/plain", output.get("text", "")))
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return parts


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
