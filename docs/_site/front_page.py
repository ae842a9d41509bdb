"""Leads from the top of the site to its front page, which is in the folder of the other pages."""

from sphinx.application import Sphinx

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={place}">
<title>seqtool</title>
<a href="{place}">seqtool</a>
</html>
"""


def write(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        (app.outdir / "index.html").write_text(PAGE.format(place=f"{app.config.root_doc}.html"), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
