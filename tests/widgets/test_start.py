"""Lesson 00's explorer: one picture and the same facts as text for every setting."""

from __future__ import annotations

import pytest

from course_utils.descriptions import describe_figure
from course_utils.selftest import INTERCEPT, SLOPE, line_points, mean_squared_error
from course_utils.widgets.start import line_view


@pytest.mark.parametrize(("slope", "intercept"), [(0.0, 0.0), (2.0, 0.5), (-3.0, 3.0)])
def test_text_and_picture_tell_the_error_of_that_line(slope, intercept):
    x, y = line_points()
    loss = mean_squared_error(slope * x + intercept, y).item()
    view = line_view(slope, intercept)
    assert f"mean squared error: {loss:.2f}" in view.text
    assert f"mean squared error {loss:.2f}" in describe_figure(view.picture)


def test_the_line_follows_the_sliders():
    (line,) = line_view(2.0, 1.0).picture.axes[0].lines
    assert line.get_ydata()[0] == pytest.approx(2.0 * line.get_xdata()[0] + 1.0)


def test_the_line_the_points_were_made_from_is_better_than_the_start():
    def error(slope: float, intercept: float) -> float:
        return float(line_view(slope, intercept).text.rpartition(" ")[2])

    assert error(SLOPE, INTERCEPT) < 0.3 < error(0.0, 0.0)
