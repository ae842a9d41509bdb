"""Renders equations as MathML when the site is built: browsers draw them without a script and without a network."""

from html import unescape
from typing import Any
from xml.etree.ElementTree import Element, tostring

from docutils import nodes
from latex2mathml.converter import convert_to_element
from sphinx.application import Sphinx

THIN = "0.1667em"  # TeX's space between an operator such as log and its argument


def mathml(latex: str, display: str) -> str:
    """The equation in MathML; `display` is `inline` or `block`."""
    element = convert_to_element(latex, display=display)
    for part in element.iter():
        part.text = unescape((part.text or "").replace("\\_", "_"))  # latex2mathml leaves escapes and \\_ as they are
        if part.text == "|":  # a delimiter around a letter, not an operator between two
            part.attrib.update(lspace="0", rspace="0")
    for row in list(element.iter("mrow")):
        _space(row)
    return tostring(element, encoding="unicode")


def _space(row: Element) -> None:
    """Put TeX's thin spaces around operators with names, such as log, which MathML sets without space."""
    for operator in [child for child in row if _is_operator(child)]:
        children = list(row)
        index = children.index(operator)
        if index + 1 < len(children) and children[index + 1].tag not in ("mo", "mspace"):
            row.insert(index + 1, Element("mspace", width=THIN))
        if index and (children[index - 1].tag not in ("mo", "mspace") or children[index - 1].text == ")"):
            row.insert(index, Element("mspace", width=THIN))


def _is_operator(element: Element) -> bool:
    """Whether the element is a name such as log, perhaps with a subscript or superscript."""
    base = element[0] if element.tag in ("msub", "msup", "munder", "msubsup") and len(element) else element
    return base.tag == "mi" and len(base.text or "") > 1 and (base.text or "").isalpha() and (base.text or "").islower()


def inline(translator: Any, node: nodes.math) -> None:
    """Write an equation within a line of text."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.math_block) -> None:
    """Write an equation on a line of its own."""
    translator.body.append(f'<div class="equation" tabindex="0">{mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
