"""Finishes the site after Sphinx has written its pages.

- The pages get what screen readers and the keyboard need and the theme lacks.
- index.html at the top of the site leads to the front page, docs/index.html.
"""

import re

from sphinx.application import Sphinx

TOP_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={path}">
<title>seqtool</title>
<a href="{path}">seqtool</a>
</html>
"""
REPLACEMENTS = {
    r'<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Site">',
    r'<aside class="(toc-drawer[^"]*)">': r'<aside class="\1" aria-label="Page">',
    r'<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    r"<pre>": '<pre tabindex="0">',  # lines wider than the page are scrolled, with the arrow keys if it has the focus
    r'<th class="head"><p></p></th>': "<td></td>",
}


def finish(app: Sphinx, error: Exception | None) -> None:
    """Finish the site, unless an error ended the build."""
    if error is not None:
        return
    for page in app.outdir.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for pattern, replacement in REPLACEMENTS.items():
            text = re.sub(pattern, replacement, text)
        page.write_text(text, encoding="utf-8")
    (app.outdir / "index.html").write_text(TOP_PAGE.format(path=f"{app.config.root_doc}.html"), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
