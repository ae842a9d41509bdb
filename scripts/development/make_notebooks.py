#!/usr/bin/env python
"""Run the notebooks of docs/notebooks and store their outputs in them: their pictures and what they print.

    pip install nbclient ipykernel
    python scripts/development/make_notebooks.py [words] [pictures]

It needs the built-in models, and takes some minutes. The log, progress bars and times of cells are not stored. The
working directory is empty and is removed.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "notebooks"
LANGUAGE = {"name": "python"}  # without the version of the machine that ran it


def main() -> None:
    import nbformat
    from nbclient import NotebookClient

    for name in sys.argv[1:] or sorted(file.stem for file in FOLDER.glob("*.ipynb")):
        file = FOLDER / f"{name}.ipynb"
        notebook = nbformat.read(file, as_version=4)
        with TemporaryDirectory() as directory:
            resources = {"metadata": {"path": directory}}
            NotebookClient(notebook, timeout=None, record_timing=False, resources=resources).execute()
        notebook.metadata["language_info"] = LANGUAGE
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(notebook, file)
        print(f"{file}: {file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
