"""Exercises: one module per lesson, the checks they are made of, verdicts, and what a learner calls (``render``)."""
