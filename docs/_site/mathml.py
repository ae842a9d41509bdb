"""Equations as MathML, made when the site is built: browsers draw them without a script and without a network."""

from html import unescape
from typing import Any
from xml.etree.ElementTree import Element, tostring

from docutils import nodes
from latex2mathml.converter import convert_to_element
from sphinx.application import Sphinx

THIN = "0.1667em"  # TeX's space between an operator such as log and what it is applied to


def mathml(latex: str, display: str) -> str:
    element = convert_to_element(latex, display=display)
    for part in element.iter():
        part.text = unescape((part.text or "").replace("\\_", "_"))  # latex2mathml leaves both as they are
        if part.text == "|":  # around a letter, and not an operator between two
            part.attrib.update(lspace="0", rspace="0")
    for row in list(element.iter("mrow")):
        _space(row)
    return tostring(element, encoding="unicode")


def _space(row: Element) -> None:
    """Put TeX's thin spaces around operators with names, which MathML sets like the letters beside them."""
    for here in [child for child in row if _is_operator(child)]:
        children = list(row)
        place = children.index(here)
        if place + 1 < len(children) and children[place + 1].tag not in ("mo", "mspace"):
            row.insert(place + 1, Element("mspace", width=THIN))
        if place and (children[place - 1].tag not in ("mo", "mspace") or children[place - 1].text == ")"):
            row.insert(place, Element("mspace", width=THIN))


def _is_operator(element: Element) -> bool:
    """Whether it is a name such as log, perhaps with something below or above it."""
    base = element[0] if element.tag in ("msub", "msup", "munder", "msubsup") and len(element) else element
    return base.tag == "mi" and len(base.text or "") > 1 and (base.text or "").isalpha() and (base.text or "").islower()


def inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="equation" tabindex="0">{mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
