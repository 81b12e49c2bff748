"""Explorers: a pure function from arguments to a picture and text, and a control panel around it.

The panel has two outputs. With a live front end, the first is the controls with the picture, the second
the numbers; both follow the controls. Without one (GitHub, papermill, a plain reader) the first falls back
to the picture and the second to the text, for the starting values. No Output widget and no printing
callbacks are used: the values of ``HTML`` and ``Image`` widgets change, which is safe in batch runs.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from course_utils.cards import in_notebook
from course_utils.plots import ALT_WIDTH, Diagram, describe_figure, png_bytes
from course_utils.text import shorten

if TYPE_CHECKING:
    from ipywidgets import Widget
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class View:
    """What an explorer shows for one setting: a picture, and the same facts as text."""

    picture: Figure | Diagram
    text: str


@dataclass(frozen=True)
class Slider:
    """A number between ``low`` and ``high``; whole numbers if all three are whole."""

    label: str
    low: float
    high: float
    value: float
    step: float = 1

    def widget(self) -> Widget:
        import ipywidgets

        whole = all(isinstance(number, int) for number in (self.low, self.high, self.value, self.step))
        kind = ipywidgets.IntSlider if whole else ipywidgets.FloatSlider
        return kind(value=self.value, min=self.low, max=self.high, step=self.step, description=self.label, **_LOOK)


@dataclass(frozen=True)
class Choice:
    """One of several options: labels, or a mapping of labels to values."""

    label: str
    options: Sequence[Any] | Mapping[str, Any]
    value: Any

    def widget(self) -> Widget:
        import ipywidgets

        options = list(self.options.items()) if isinstance(self.options, Mapping) else list(self.options)
        return ipywidgets.Dropdown(options=options, value=self.value, description=self.label, **_LOOK)


@dataclass(frozen=True)
class Switch:
    """On or off."""

    label: str
    value: bool

    def widget(self) -> Widget:
        import ipywidgets

        return ipywidgets.Checkbox(value=self.value, description=self.label, indent=False)


@dataclass(frozen=True)
class Entry:
    """A line of text; the picture follows when the reader presses Enter or leaves the field."""

    label: str
    value: str

    def widget(self) -> Widget:
        import ipywidgets

        return ipywidgets.Text(value=self.value, description=self.label, continuous_update=False, **_LOOK)


Control = Slider | Choice | Switch | Entry
_LOOK: dict[str, Any] = {"style": {"description_width": "initial"}, "layout": {"width": "24em"}}


def explore(render: Callable[..., View], **controls: Control) -> None:
    """Show an explorer: one control per argument of ``render``, redrawn at every change.

    Args:
        render: a pure function; its arguments are the controls' names. An error that it raises appears
            as text in the panel, and the next change draws again.
        controls: ``Slider``, ``Choice``, ``Switch`` or ``Entry`` by argument name, each with a starting value.
    """
    view = render(**{name: control.value for name, control in controls.items()})
    picture, description = rendered(view.picture)
    if not in_notebook():
        print(f"{description}\n{view.text}")
        return
    import ipywidgets
    from IPython.display import display

    widgets = {name: control.widget() for name, control in controls.items()}
    screen = ipywidgets.HTML(_as_html(picture, description))
    numbers = ipywidgets.HTML(_as_pre(view.text))

    def redraw(_change: object = None) -> None:
        try:
            fresh = render(**{name: widget.value for name, widget in widgets.items()})
            screen.value, numbers.value = _as_html(*rendered(fresh.picture)), _as_pre(fresh.text)
        except Exception as error:
            numbers.value = _as_pre(f"{type(error).__name__}: {shorten(str(error), 300)}")

    for widget in widgets.values():
        widget.observe(redraw, names="value")
    controls_box = ipywidgets.HBox(list(widgets.values()), layout={"flex_flow": "row wrap"})
    panel = ipywidgets.VBox([controls_box, screen])
    fallback = {"text/plain": description}
    if isinstance(picture, bytes):
        fallback["image/png"] = base64.b64encode(picture).decode()
    else:
        fallback["image/svg+xml"] = picture
    display({**_live(panel), **fallback}, raw=True)
    display({**_live(numbers), "text/plain": view.text}, raw=True)


def rendered(picture: Figure | Diagram) -> tuple[bytes | str, str]:
    """Return a picture as PNG bytes or SVG text, with its description; a figure is closed."""
    if isinstance(picture, Diagram):
        return picture.drawing, picture.text
    data, description = png_bytes(picture), describe_figure(picture)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(picture)  # else the cell's end would display it a second time
    return data, description


def _live(widget: Widget) -> dict[str, Any]:
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view}


def _as_html(picture: bytes | str, description: str) -> str:
    words = escape(shorten(description, ALT_WIDTH))
    if isinstance(picture, str):
        return picture
    data = base64.b64encode(picture).decode()
    return f'<img alt="{words}" style="max-width:100%" src="data:image/png;base64,{data}">'


def _as_pre(text: str) -> str:
    # white-space: a table that is wider than the window is scrolled; broken lines would tear its columns apart.
    return f'<pre style="margin:4px 0;line-height:1.35;white-space:pre;overflow-x:auto">{escape(text)}</pre>'
