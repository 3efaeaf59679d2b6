"""A few SVG shapes as ElementTree elements, which escape what they are given. Colours are classes of style.css."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup


def canvas(width: float, height: float, name: str) -> Element:
    """An empty figure that says to a screen reader what it shows; its numbers stand in the table beside it."""
    root = Element(
        "svg", {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": name, "class": "figure"}
    )
    root.set("style", f"min-width:{min(width, 660):g}px;max-width:{width:g}px")
    return root


def rect(parent: Element, box: tuple[float, float, float, float], style: str, tip: str = "") -> Element:
    """A rectangle (x, y, width, height), with a tooltip."""
    x, y, width, height = (f"{max(v, 0):.5g}" for v in box)
    made = SubElement(parent, "rect", {"x": x, "y": y, "width": width, "height": height, "class": style})
    if tip:
        SubElement(made, "title").text = tip
    return made


def text(parent: Element, x: float, y: float, words: str, style: str = "") -> Element:
    """A line of text; styles `end` and `middle` set the anchor."""
    made = SubElement(parent, "text", {"x": f"{x:.5g}", "y": f"{y:.5g}", "class": style})
    made.text = words
    return made


def line(parent: Element, points: Iterable[tuple[float, float]], style: str) -> Element:
    """A line through points."""
    return SubElement(parent, "polyline", {"points": " ".join(f"{x:.5g},{y:.5g}" for x, y in points), "class": style})


def blocks(parent: Element, boxes: Iterable[tuple[float, float, float, float]], style: str) -> Element:
    """Many rectangles of one style as one path."""
    drawn = "".join(f"M{x:.5g} {y:.5g}h{w:.4g}v{h:.4g}h{-w:.4g}z" for x, y, w, h in boxes)
    return SubElement(parent, "path", {"d": drawn, "class": style})


def dot(parent: Element, x: float, y: float, style: str, tip: str) -> Element:
    """A point with a tooltip."""
    made = SubElement(parent, "circle", {"cx": f"{x:.5g}", "cy": f"{y:.5g}", "r": "5", "class": style})
    SubElement(made, "title").text = tip
    return made


def markup(root: Element) -> Markup:
    """The element as HTML."""
    return Markup(tostring(root, encoding="unicode"))
