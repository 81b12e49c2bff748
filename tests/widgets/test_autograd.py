"""Lesson 02's explorer: it computes what is typed, draws its graph, and runs nothing else."""

from __future__ import annotations

import math

import pytest
import torch

from course_utils.widgets.autograd import FUNCTIONS, ExpressionError, evaluate, explore_expression, expression_view

LEAVES = {"x": torch.tensor(1.5), "y": torch.tensor(-0.5)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x * y + sin(x) ** 2", 1.5 * -0.5 + math.sin(1.5) ** 2), ("-x / (y - 1)", 1.0), ("2", 2.0), ("+x", 1.5),
        ("exp(log(x))", 1.5), ("relu(y)", 0.0), (" x ", 1.5), ("2 ** x", 2**1.5),
    ],
)  # fmt: skip
def test_expressions_have_the_value_that_python_gives_them(text, value):
    assert evaluate(text, LEAVES).item() == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x +", "no expression"), ("", "no expression"), ("w", "There is no 'w'"), ("sinn(x)", "Did you mean 'sin'"),
        ("__import__('os')", "There is no '__import__'"), ("x.backward()", "Only numbers"), ("[x]", "Only numbers"),
        ("lambda: x", "Only numbers"), ("'a' * 3", "Only numbers"), ("x if y else x", "Only numbers"),
        ("exp(x, y)", "Only numbers"), ("exp(x=y)", "Only numbers"), ("1 / 0", "has no value"),
        ("x" * 200, "longer than"), ("9**9**9", "has no value"), ("(-8) ** 0.5", "no real value"),
        ("x @ y", "Only numbers"), ("True", "Only numbers"),
        ("+".join(["x"] * 55), "too many parts"), ("(" * 50 + "x", "no expression"),
    ],
)  # fmt: skip
def test_everything_else_is_refused_with_a_sentence(text, words):
    with pytest.raises(ExpressionError, match=words.replace("(", r"\(")):
        evaluate(text, LEAVES)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_drawn_with_its_gradient(name):
    view = expression_view(f"{name}(x) * y", 0.7, 2.0, 0.0)
    assert "gradient of x = 0.7" in view.text
    assert "not in the graph" in view.text.splitlines()[-1]
    x = torch.tensor(0.7, requires_grad=True)
    (grad,) = torch.autograd.grad(FUNCTIONS[name](x) * 2.0, x)
    assert f"{grad.item():.4g}" in view.text
    assert view.picture.svg.startswith("<svg")
    assert f"grad {grad.item():.4g}" in view.picture.svg


@pytest.mark.parametrize("text", ["3 * 4", "x +", "q", " + ".join(["sin(x)"] * 14)])
def test_what_cannot_be_drawn_is_a_message_in_place_of_the_picture(text):
    view = expression_view(text, 1.0, 1.0, 1.0)
    assert view.picture.text
    assert "gradient of" not in view.text


def test_the_panel_shows_a_picture_without_a_front_end(capsys):
    explore_expression()
    shown = capsys.readouterr().out
    assert "gradient of x" in shown
    assert "Pow" in shown
