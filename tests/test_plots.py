"""Figures and diagrams: shown with a description, in one look, and nothing left open."""

from __future__ import annotations

import base64
import subprocess
import sys
from io import BytesIO

import matplotlib
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image

from course_utils import plots
from course_utils.errors import CourseError
from course_utils.plots import ALT_WIDTH, PALETTE, Diagram, figure_bundle, png_bytes, show, styled, use_style

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="2"><rect width="4" height="2"/></svg>'


@pytest.fixture(autouse=True)
def own_settings():
    with matplotlib.rc_context():
        yield
    plt.close("all")


@pytest.fixture
def shown(monkeypatch):
    """Pretend to be in a notebook; collect what is displayed."""
    seen: list[tuple[dict, dict]] = []
    monkeypatch.setattr(plots, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, metadata=None, raw=False: seen.append((data, metadata)))
    return seen


def parabola():
    fig, ax = plt.subplots()
    ax.plot([0, 1, 2], [0, 1, 4], label="square")
    ax.set(xlabel="side (m)", ylabel="area (m²)")
    return fig


def test_a_figure_is_shown_as_picture_and_description_with_its_caption_below(shown):
    show(parabola(), "The area grows <faster> than the side.")
    (picture, metadata), (caption, _) = shown
    assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG")
    assert picture["text/plain"].splitlines() == [
        "The area grows <faster> than the side.",
        'Plot: x is "side (m)", y is "area (m²)".',
        '  line "square": 3 points, x 0 to 2, y 0 to 4; y: 0, 1, 4',
    ]
    assert metadata["image/png"]["alt"].startswith("The area grows <faster> than the side. Plot:")
    assert "&lt;faster&gt;" in caption["text/html"]
    assert caption["text/plain"] == "The area grows <faster> than the side."


def test_a_shown_figure_is_closed(shown):
    figure = parabola()
    show(figure)
    assert not plt.fignum_exists(figure.number)
    assert len(shown) == 1  # no caption, no second output


def test_outside_of_a_notebook_the_description_is_printed(capsys):
    show(parabola(), "A parabola.")
    show(Diagram(SVG, "One rectangle."))
    assert capsys.readouterr().out.splitlines()[::3] == ["A parabola.", "One rectangle."]


def test_alternative_text_is_short_enough_to_be_read_aloud():
    fig, ax = plt.subplots()
    for index in range(40):
        ax.plot([0, index], label=f"line {index}")
    _, metadata = figure_bundle(fig)
    assert len(metadata["image/png"]["alt"]) <= ALT_WIDTH


def test_pictures_are_the_same_byte_for_byte_and_small():
    assert png_bytes(parabola()) == png_bytes(parabola())
    picture = png_bytes(parabola())
    assert len(picture) < 40 * 1024
    with Image.open(BytesIO(picture)) as image:
        assert image.width < 700
        assert "Software" not in image.info


def test_a_diagram_carries_its_text_as_title_of_the_drawing(shown):
    show(Diagram(SVG, "One rectangle, 4 < 5."))
    ((data, _),) = shown
    assert data["text/plain"] == "One rectangle, 4 < 5."
    assert ' width="4" height="2"><title>One rectangle, 4 &lt; 5.</title><rect' in data["image/svg+xml"]


def test_a_diagram_shrinks_with_the_window_and_is_one_picture_to_a_screen_reader():
    begin = '<svg role="img" style="max-width:100%;height:auto" xmlns='
    assert Diagram(SVG, "text").drawing.startswith(begin)


def test_a_diagram_with_a_title_of_its_own_keeps_it():
    drawing = SVG.replace("<rect", "<title>mine</title><rect")
    assert Diagram(drawing, "text").drawing.count("<title>") == 1


@pytest.mark.parametrize(("svg", "text"), [("<p>no</p>", "text"), (SVG, " ")], ids=["no drawing", "no words"])
def test_a_diagram_needs_a_drawing_and_words(svg, text):
    with pytest.raises(CourseError, match="needs a drawing and words"):
        Diagram(svg, text)


def test_what_is_no_picture_gets_a_sentence():
    with pytest.raises(CourseError, match="can't be shown as a picture") as caught:
        show([1, 2])
    assert "pass fig" in caught.value.fix


def test_the_style_is_put_back_also_after_an_error():
    before = matplotlib.rcParams["axes.grid"], matplotlib.rcParams["axes.prop_cycle"]

    def fail_inside():
        with styled():
            assert matplotlib.rcParams["axes.prop_cycle"].by_key()["color"] == list(PALETTE)
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail_inside()
    assert (matplotlib.rcParams["axes.grid"], matplotlib.rcParams["axes.prop_cycle"]) == before


def test_use_style_holds_from_there_on():
    use_style()
    assert matplotlib.rcParams["axes.prop_cycle"].by_key()["color"] == list(PALETTE)


def test_importing_the_module_imports_no_matplotlib():
    code = "import sys, course_utils.plots; print({'matplotlib', 'numpy', 'torch', 'IPython'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"
