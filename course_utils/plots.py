"""The look of the course's figures, and the one way to show them.

``show(figure, caption)`` displays a picture together with a description of what is drawn. Readers without the
picture read the description, and the regression tests compare it, since they never look inside a PNG.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

from course_utils.cards import in_notebook
from course_utils.descriptions import describe_figure
from course_utils.errors import CourseError
from course_utils.text import shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "PALETTE",
    "STYLE",
    "Diagram",
    "describe_figure",
    "figure_bundle",
    "png_bytes",
    "show",
    "styled",
    "use_style",
]

# Okabe and Ito's palette, darkest contrast first: told apart by colour-blind readers and in grey print.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")

STYLE: dict[str, Any] = {
    "figure.figsize": (6.4, 3.4),  # inches
    "figure.dpi": 90,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",  # also in dark themes, so that black labels stay readable
    "savefig.dpi": 90,
    "savefig.facecolor": "white",
    "font.family": ["DejaVu Sans"],  # ships with matplotlib: the same everywhere
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "image.cmap": "viridis",
    "image.interpolation": "nearest",  # a pixel is a value; nothing is invented between two
}
ALT_WIDTH = 600  # characters; screen readers read it in one go


@dataclass(frozen=True)
class Diagram:
    """A drawing made by code: SVG for eyes, text that says the same, for readers and for output comparison.

    Raises:
        CourseError: if ``svg`` is not an SVG element or ``text`` is empty.
    """

    svg: str
    text: str

    def __post_init__(self) -> None:
        if not self.svg.lstrip().startswith("<svg") or not self.text.strip():
            raise CourseError(
                "A Diagram needs a drawing and words.",
                got=shorten(self.svg, 40) if self.text.strip() else "no text",
                expected="svg that starts with '<svg', and text that says what it shows",
                fix="write the text that a reader without the picture needs.",
            )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"image/svg+xml": self.drawing, "text/plain": self.text}

    @property
    def drawing(self) -> str:
        """The SVG as it is displayed: narrow windows shrink it, and screen readers read its title as one picture."""
        title = "" if "<title" in self.svg else f"<title>{escape(shorten(self.text, ALT_WIDTH))}</title>"
        begin = '<svg role="img" style="max-width:100%;height:auto"'
        return re.sub(r"<svg([^>]*>)", lambda match: begin + match[1] + title, self.svg, count=1)


def use_style() -> None:
    """Use the course's look for every figure from here on; a lesson's setup cell calls it once."""
    import matplotlib

    matplotlib.rcParams.update(_style())


@contextmanager
def styled() -> Iterator[None]:
    """Use the course's look inside the block; afterwards matplotlib has its own settings back."""
    import matplotlib

    with matplotlib.rc_context(_style()):
        yield


def show(picture: Figure | Diagram, caption: str = "", *, digits: int = 2) -> None:
    """Display a figure or diagram with its description; a figure is closed afterwards.

    Args:
        picture: a matplotlib figure, or a ``Diagram``.
        caption: one sentence that says what to see in it; shown below the picture.
        digits: how finely the description tells numbers (see ``describe_figure``).

    Raises:
        CourseError: if ``picture`` is neither.
    """
    if isinstance(picture, Diagram):
        data, metadata = picture._repr_mimebundle_(), {}
    elif hasattr(picture, "savefig"):
        data, metadata = figure_bundle(picture, caption, digits=digits)
        _close(picture)
    else:
        raise CourseError(
            "This can't be shown as a picture.",
            got=picture,
            expected="a matplotlib figure or a Diagram",
            fix="with `fig, ax = plt.subplots()`, pass fig.",
        )
    if not in_notebook():
        print(data["text/plain"])
        return
    from IPython.display import display

    display(data, metadata=metadata, raw=True)
    if caption:
        # A second output, so that the picture stays a plain image for readers that know no HTML.
        html = f'<p style="max-width:46em;margin:2px 0 8px 0"><em>{escape(caption)}</em></p>'
        display({"text/html": html, "text/plain": caption}, raw=True)


def figure_bundle(figure: Figure, caption: str = "", *, digits: int = 2) -> tuple[dict[str, str], dict[str, Any]]:
    """Return a figure as display data, PNG and description, and its metadata with the alternative text."""
    text = "\n".join(filter(None, [caption, describe_figure(figure, digits)]))
    data = {"image/png": base64.b64encode(png_bytes(figure)).decode("ascii"), "text/plain": text}
    return data, {"image/png": {"alt": shorten(text, ALT_WIDTH)}}


def png_bytes(figure: Figure) -> bytes:
    """Return the figure as a PNG file in the course's resolution, without time stamps or version names."""
    buffer = BytesIO()
    with styled():
        figure.savefig(buffer, format="png", bbox_inches="tight", pad_inches=0.05, metadata={"Software": None})
    return buffer.getvalue()


def _style() -> dict[str, Any]:
    from cycler import cycler

    return {**STYLE, "axes.prop_cycle": cycler(color=PALETTE)}


def _close(figure: Figure) -> None:
    """Take the figure off pyplot's list, else the cell's end would display it a second time."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)
