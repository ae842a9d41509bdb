"""The documentation's site: `bash scripts/make_site.sh` builds it into build/site with Sphinx.

Its sources are the Markdown pages in this directory, and the pages elsewhere in the repository that they link to. No
page is copied, so links and pictures work in the repository as on the site. The extensions in _site/ make the reference
from the code.
"""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS / "_site")]

from seqtool.runtime.version import __version__  # noqa: E402  (needs sys.path as set above)

project = "seqtool"
author = "the contributors of seqtool"
version = release = __version__
copyright = f"{author}, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "mathml", "notebooks", "reference", "finish"]
root_doc = "docs/index"
include_patterns = [
    *("docs/**.md", "docs/notebooks/*.ipynb", "data/README.md", "results/README.md", "results/different_numbers.md"),
    *("CONTRIBUTING.md", "CHANGELOG.md"),
]
exclude_patterns = [".*", "build", "cache", "runs", "outputs", "multirun", "dist", "data/*/**", "**/node_modules"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
smartquotes_action = "D"  # only dashes are replaced; quotation marks stay as they are written
html_math_renderer = "mathml"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = "seqtool"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
highlight_language = "none"
