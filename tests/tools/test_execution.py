"""How much a notebook may show; the rest of execution is tried by the tests of the runner."""

from __future__ import annotations

from course_utils.tools.execution import OutputBudget, size_of


def test_an_output_budget_names_the_limit_that_breaks():
    budget = OutputBudget(cell_bytes=100, notebook_bytes=150, cell_messages=3)
    assert budget.breach(100) == ""
    assert "wrote more than 100 B" in budget.breach(101)
    budget.spend(90)
    assert budget.room() == 10
    budget.next_cell()
    assert budget.room() == 60
    assert "above 150 B" in budget.breach(61)
    for _ in range(3):
        budget.spend(1)
    assert "more than 3 outputs" in budget.breach(1)


def test_the_size_of_a_message_counts_its_texts():
    assert size_of({"data": {"text/plain": "12345", "image/png": "x" * 1000}, "list": ["ab", "cd"], "n": 1}) > 1009
