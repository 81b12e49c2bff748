"""Lesson 00's explorer: move a line through points and watch the loss."""

from __future__ import annotations

import torch

from course_utils.plots import PALETTE, styled
from course_utils.selftest import X_RANGE, line_points, mean_squared_error
from course_utils.widgets.panel import Slider, View, explore

START_SLOPE, START_INTERCEPT = 0.0, 0.0


def line_view(slope: float, intercept: float) -> View:
    """Draw the points of the self-test and one line, with the mean squared error as text."""
    from matplotlib.figure import Figure

    x, y = line_points()
    loss = mean_squared_error(slope * x + intercept, y).item()
    with styled():
        figure = Figure(figsize=(5.6, 3.2))
        axes = figure.subplots()
        axes.scatter(x, y, s=7, color=PALETTE[5], label="points")
        ends = torch.tensor(X_RANGE)
        axes.plot(ends, slope * ends + intercept, color=PALETTE[1], label="your line")
        axes.set(xlabel="x", ylabel="y", ylim=(-5, 6), title=f"mean squared error {loss:.2f}")
        axes.legend(loc="upper left")
    lines = [f"line: y = {slope:.2f} x + {intercept:.2f}", f"mean squared error: {loss:.2f}"]
    return View(figure, "\n".join(lines))


def explore_line() -> None:
    """Show the explorer: slope and intercept of a line, its picture and its loss."""
    explore(
        line_view,
        slope=Slider("slope", -3.0, 3.0, START_SLOPE, 0.1),
        intercept=Slider("intercept", -3.0, 3.0, START_INTERCEPT, 0.1),
    )
