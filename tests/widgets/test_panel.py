"""The panel around an explorer: a picture without a front end, a redraw at every change, errors as text."""

from __future__ import annotations

import base64
from typing import Any

import ipywidgets
import pytest
from matplotlib.figure import Figure

from course_utils.plots import Diagram
from course_utils.widgets import panel
from course_utils.widgets.panel import Choice, Entry, Slider, Switch, View, explore

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><circle r="{}"/></svg>'
WIDGET = "application/vnd.jupyter.widget-view+json"


def circle(radius: int = 1, name: str = "a", filled: bool = False) -> View:
    if radius == 13:
        raise ValueError("no such <circle>")
    return View(Diagram(SVG.format(radius), f"circle of radius {radius}"), f"{name}: radius {radius}, filled {filled}")


def plot(height: float) -> View:
    figure = Figure()
    figure.subplots().plot([0, 1], [0, height], label="line")
    return View(figure, f"height {height}")


@pytest.fixture
def outputs(monkeypatch) -> list[dict[str, Any]]:
    """Collect what would be displayed in a notebook."""
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(panel, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    yield shown
    ipywidgets.Widget.close_all()


def widget_of(output: dict[str, Any]) -> ipywidgets.Widget:
    from ipywidgets.widgets.widget import _instances

    return _instances[output[WIDGET]["model_id"]]


def controls_of(output: dict[str, Any]) -> list[ipywidgets.Widget]:
    return list(widget_of(output).children[0].children)


def picture_of(output: dict[str, Any]) -> str:
    return widget_of(output).children[1].value


def descendants(widget: ipywidgets.Widget) -> list[ipywidgets.Widget]:
    return [widget, *(deep for child in getattr(widget, "children", ()) for deep in descendants(child))]


def test_outside_a_notebook_the_facts_are_printed(capsys):
    explore(circle, radius=Slider("radius", 0, 5, 3))
    assert capsys.readouterr().out == "circle of radius 3\na: radius 3, filled False\n"


def test_without_a_front_end_the_cell_shows_picture_and_numbers_of_the_start(outputs):
    explore(circle, radius=Slider("radius", 0, 5, 3))
    picture, numbers = outputs
    assert picture["image/svg+xml"] == Diagram(SVG.format(3), "circle of radius 3").drawing
    assert picture["text/plain"] == "circle of radius 3"
    assert numbers["text/plain"] == "a: radius 3, filled False"


def test_a_figure_falls_back_to_a_png_with_a_description(outputs):
    explore(plot, height=Slider("height", 0.0, 1.0, 0.5, 0.1))
    assert base64.b64decode(outputs[0]["image/png"]).startswith(b"\x89PNG")
    assert 'line "line"' in outputs[0]["text/plain"]
    assert "image/svg+xml" not in outputs[0]


def test_a_change_of_a_control_redraws_picture_and_numbers(outputs):
    explore(circle, radius=Slider("radius", 0, 5, 3))
    before = picture_of(outputs[0])
    controls_of(outputs[0])[0].value = 4
    assert 'r="4"' in picture_of(outputs[0]) != before
    assert "radius 4" in widget_of(outputs[1]).value


def test_each_control_sets_the_argument_of_its_name(outputs):
    explore(
        circle,
        radius=Choice("size", {"small": 1, "large": 9}, 1),
        name=Entry("name", "a"),
        filled=Switch("filled", False),
    )
    size, name, filled = controls_of(outputs[0])
    size.label, name.value, filled.value = "large", "b", True
    assert "b: radius 9, filled True" in widget_of(outputs[1]).value


def test_an_error_appears_as_text_and_the_next_change_draws_again(outputs):
    explore(circle, radius=Slider("radius", 0, 20, 3))
    slider = controls_of(outputs[0])[0]
    slider.value = 13
    assert "ValueError: no such &lt;circle&gt;" in widget_of(outputs[1]).value
    assert 'r="3"' in picture_of(outputs[0])
    slider.value = 5
    assert 'r="5"' in picture_of(outputs[0])
    assert "ValueError" not in widget_of(outputs[1]).value


def test_an_error_at_the_start_is_an_error_of_the_cell(outputs):
    with pytest.raises(ValueError, match="no such"):
        explore(circle, radius=Slider("radius", 0, 20, 13))
    assert outputs == []


def test_no_output_widget_is_used(outputs):
    """An Output widget talks while a reply is awaited: batch runs have stopped for ever in it."""
    explore(circle, radius=Slider("radius", 0, 5, 3), name=Entry("name", "a"))
    seen = [widget for output in outputs for widget in descendants(widget_of(output))]
    assert not any(isinstance(widget, ipywidgets.Output) for widget in seen)


def test_the_picture_has_words_for_those_who_do_not_see_it(outputs):
    explore(circle, radius=Slider("radius", 0, 5, 3))
    assert "<title>circle of radius 3</title>" in picture_of(outputs[0])
    explore(plot, height=Slider("height", 0.0, 1.0, 0.5, 0.1))
    assert 'alt="Plot' in picture_of(outputs[2])


@pytest.mark.parametrize(
    ("control", "kind"),
    [
        (Slider("n", 0, 5, 3), ipywidgets.IntSlider),
        (Slider("n", 0.0, 5.0, 3.0, 0.5), ipywidgets.FloatSlider),
        (Choice("n", ["a", "b"], "a"), ipywidgets.Dropdown),
        (Switch("n", True), ipywidgets.Checkbox),
        (Entry("n", "a"), ipywidgets.Text),
    ],
)
def test_a_control_makes_its_widget_with_its_value_and_label(control, kind):
    widget = control.widget()
    assert type(widget) is kind
    assert (widget.value, widget.description) == (control.value, "n")
    widget.close()


def test_a_figure_is_closed_so_that_the_cell_does_not_show_it_twice(outputs):
    import matplotlib.pyplot as plt

    def with_pyplot(height: float) -> View:
        figure, axes = plt.subplots()
        axes.plot([0, height])
        return View(figure, "x")

    before = plt.get_fignums()
    explore(with_pyplot, height=Slider("height", 0.0, 1.0, 0.5, 0.1))
    controls_of(outputs[0])[0].value = 0.6
    assert plt.get_fignums() == before


def test_in_a_narrow_window_a_table_is_scrolled():
    assert "white-space:pre;overflow-x:auto" in panel._as_pre("a  b")
