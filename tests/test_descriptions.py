"""Descriptions of figures: they follow the picture, and not the last digits."""

from __future__ import annotations

import math

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from course_utils.descriptions import describe_figure, rounded


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def described(draw, **settings) -> str:
    fig, ax = plt.subplots()
    draw(ax)
    ax.set(**settings)
    text = describe_figure(fig)
    plt.close(fig)
    return text


X = np.linspace(0, 5, 101)
PICTURES = {
    "line": lambda ax, a: ax.plot(X, a * X**2, label="square"),
    "points": lambda ax, a: ax.plot(X, a * X, "o"),
    "scatter": lambda ax, a: ax.scatter(np.cos(X), a * np.sin(X), c=a * X),
    "bars": lambda ax, a: ax.bar(["one", "two", "three"], [1, 2 * a, 3]),
    "horizontal bars": lambda ax, a: ax.barh([0, 1, 2], [1, 2 * a, 3]),
    "histogram": lambda ax, a: ax.hist(a * np.sin(X * 7), bins=np.linspace(-3.05, 3.02, 12)),
    "image": lambda ax, a: ax.imshow(a * np.arange(784).reshape(28, 28)),
    "colour image": lambda ax, a: ax.imshow(np.full((4, 4, 3), 0.25 * a)),
    "mesh": lambda ax, a: ax.pcolormesh(a * np.arange(12).reshape(3, 4)),
    "area": lambda ax, a: ax.fill_between(X, a * X),
    "segments": lambda ax, a: ax.vlines([1, 2], 0, [1, 2 * a]),
    "error bars": lambda ax, a: ax.errorbar([1, 2], [3, 4], yerr=[0.5 * a, 0.2], label="mean ± sd"),
    "steps": lambda ax, a: ax.step(X, a * X),
    "stem": lambda ax, a: ax.stem([1, 2, 3], [1, 2 * a, 3]),
    "contours": lambda ax, a: ax.contour(np.outer(X, X), levels=[1 * a, 5, 10]),
    "arrows": lambda ax, a: ax.quiver([0, 1], [0, 1], [1 * a, 1], [0, 1]),
    "horizontal mark": lambda ax, a: ax.axhline(0.1 * a),
    "vertical mark": lambda ax, a: ax.axvline(0.1 * a),
    "band": lambda ax, a: ax.axvspan(0, a),
    "circle": lambda ax, a: ax.add_patch(plt.Circle((a, 1), 0.5)),
    "limits": lambda ax, a: ax.set_xlim(0, a),
    "logarithmic": lambda ax, a: ax.loglog(X[1:], a * X[1:] ** 3),
    "heat map with numbers": lambda ax, a: ax.text(0, 0, f"{a:.2f}"),
}
each_picture = pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES.keys())


@each_picture
def test_a_changed_picture_has_another_description(draw):
    texts = {described(lambda ax, a=a: draw(ax, a)) for a in (1.0, 1.5)}
    assert len(texts) == 2


@each_picture
@pytest.mark.parametrize("noise", [1e-7, -1e-7])
def test_last_digits_change_no_description(draw, noise):
    assert described(lambda ax: draw(ax, 1.0)) == described(lambda ax: draw(ax, 1.0 + noise))


def test_a_single_point_that_moves_is_seen():
    y = np.sin(X)
    moved = y.copy()
    moved[50] += 0.2
    assert described(lambda ax: ax.plot(X, y)) != described(lambda ax: ax.plot(X, moved))


def test_labels_scales_and_names_are_told():
    text = described(
        lambda ax: ax.bar(["cat", "dog"], [1, 2], label="speed"),
        title="Two\nanimals", ylabel="speed (m/s)", yscale="log",
    )  # fmt: skip
    assert text.splitlines()[0] == 'Plot "Two animals": y is "speed (m/s)", y in log scale.'
    assert 'bars "speed", named cat, dog, y 1 to 2; lengths: 1, 2' in text


def test_every_axes_is_told_and_colour_scales_by_their_label():
    fig, (left, right) = plt.subplots(1, 2)
    fig.suptitle("Both")
    fig.colorbar(left.imshow([[0, 1], [2, 3]]), label="count")
    right.plot([1, 2], [3, float("nan")])
    hidden = right.plot([9, 9])[0]
    hidden.set_visible(False)
    text = describe_figure(fig)
    assert text.startswith("Heading: Both.\nPlot.\n  image of 2 × 2 values: 0, 1, 2, 3\nPlot.\n")
    assert "y 3 (1 not finite)" in text
    assert 'Colour scale: y is "count"' in text
    assert "9" not in text


def test_an_empty_figure_says_so():
    assert describe_figure(plt.figure()) == "An empty figure."


def test_fewer_digits_forgive_more():
    def text(a, digits):
        fig, ax = plt.subplots()
        ax.plot(X, a * np.exp(-X))
        return describe_figure(fig, digits)

    assert text(1.0, 2) != text(1.01, 2)
    assert text(1.0, 1) == text(1.001, 1)


@given(
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=20),
    st.sampled_from([1, 2, 4, 8, 10, 20, 100]),
    st.floats(-1e-9, 1e-9),
)
def test_round_numbers_never_sit_on_a_rounding_boundary(numbers, divisor, noise):
    values = [number / divisor for number in numbers]
    assert rounded(values) == rounded([value * (1 + noise) for value in values])


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20))
def test_rounded_numbers_are_near_the_real_ones(values):
    span = max(max(values) - min(values), max(map(abs, values)) / 50)
    for text, value in zip(rounded(values), values, strict=True):
        assert abs(float(text) - value) <= span / 50 + 1e-300


@given(st.lists(st.floats(1e-8, 1e8), min_size=1, max_size=20))
def test_on_a_logarithmic_axis_each_number_keeps_its_digits(values):
    for text, value in zip(rounded(values, log=True), values, strict=True):
        assert math.isclose(float(text), value, rel_tol=0.06)


def test_what_is_not_finite_is_named():
    assert rounded([1.0, math.nan, math.inf]) == ["1", "nan", "inf"]
    assert rounded([math.nan]) == ["nan"]
    assert rounded([]) == []
