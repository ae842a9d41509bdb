"""What is left to do when the pages are written: the way from the top of the site to its front page, and what screen
readers and the keyboard need and the theme does not have.
"""

import re

from sphinx.application import Sphinx

TOP = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={place}">
<title>seqtool</title>
<a href="{place}">seqtool</a>
</html>
"""
REPLACED = {
    r'<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Site">',
    r'<aside class="(toc-drawer[^"]*)">': r'<aside class="\1" aria-label="Page">',
    r'<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    r"<pre>": '<pre tabindex="0">',  # it may be wider than the page, and is then scrolled
    r'<th class="head"><p></p></th>': "<td></td>",
}


def finish(app: Sphinx, error: Exception | None) -> None:
    if error is not None:
        return
    for page in app.outdir.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for pattern, replacement in REPLACED.items():
            text = re.sub(pattern, replacement, text)
        page.write_text(text, encoding="utf-8")
    (app.outdir / "index.html").write_text(TOP.format(place=f"{app.config.root_doc}.html"), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
