"""The few SVG elements that our pictures are made of, as text."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase, digits
from xml.sax.saxutils import escape

from specgrammar.errors import ConfigError

_NARROW = frozenset(ascii_lowercase + digits + " .,:;()-_'/") - frozenset("mw")


def content(text: str) -> str:
    """Any text as an element's; what cannot be printed, and so may not be in XML, is replaced."""
    return escape("".join(character if character.isprintable() else "\ufffd" for character in text))


def width_of(text: str, size: float) -> float:
    """At least what a text takes, in pixels, at a font size, in the sans-serif fonts in use."""
    return size * sum(0.64 if character in _NARROW else 1.0 for character in text)


def shortened(text: str, width: float, size: float) -> str:
    """As much of a text as fits."""
    if width_of(text, size) <= width:
        return text
    fitting = text[: int(width / (0.64 * size))]  # no more than that, whatever the characters
    while fitting and width_of(f"{fitting}…", size) > width:
        fitting = fitting[:-1]
    return f"{fitting}…"


def label(
    x: float,
    y: float,
    text: str,
    *,
    size: float = 12,
    fill: str = "#222",
    anchor: str = "start",
    bold: bool = False,
) -> str:
    """A line of text whose baseline begins (or, by `anchor`, has its middle or end) at a point."""
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"'
    return f"<text {place}{weight}>{content(text)}</text>"


def rectangle(x: float, y: float, width: float, height: float, fill: str, tip: str = "") -> str:
    """A filled rectangle; a browser shows the tip over it."""
    title = f"<title>{content(tip)}</title>" if tip else ""
    box = f'x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" fill="{fill}"'
    return f"<rect {box}>{title}</rect>"


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    stroke: str,
    *,
    stroke_width: float = 1.0,
    dashed: bool = False,
    tip: str = "",
) -> str:
    """A rectangle with round corners and a border; a browser shows the tip over it."""
    title = f"<title>{content(tip)}</title>" if tip else ""
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"'
    border = f'stroke="{stroke}" stroke-width="{stroke_width:g}"{dashes}'
    return f'<rect {place} fill="{fill}" {border}>{title}</rect>'


def line(x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> str:
    """A thin line."""
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1:.2f}" y1="{y1:.1f}" x2="{x2:.2f}" y2="{y2:.1f}" stroke="#555"{dashes}/>'


def document(width: float, height: float, title: str, elements: list[str]) -> str:
    """A whole picture on white."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}" font-family="DejaVu Sans, Verdana, Arial, sans-serif">',
            f"<title>{content(title)}</title>",
            rectangle(0, 0, width, height, "#ffffff"),
            *elements,
            "</svg>\n",
        ]
    )


def write_svg(path: str, text: str) -> None:
    """Write a picture where `--svg` says; raises ConfigError where that is impossible."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # a ValueError: a NUL in the path
        raise ConfigError(f"--svg: {path} cannot be written: {error}") from error
