"""What runs in a student's process: their cells, one after the other, and the calls that the judge makes.

The judge's process decides. For exercises whose answers can be carried over, this process only answers calls. For the
others the check runs here, under controls: when all is done, answers that are known to be right or wrong come over, and
unless they are judged here as they are there, the judge counts nothing of it.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from course_utils.exercises.judge import evaluate, is_blank
from course_utils.exercises.registry import Exercise, exercises_of
from course_utils.lessons import find_lesson
from course_utils.tools.grading.carry import Channel, NotCarried, Writer, serve
from course_utils.tools.grading.controls import control_states


class Student:
    """Runs a script, and lets the judge ask about each answer as soon as its cell has run.

    Made before any of the student's code runs, so that what that replaces is not what we use.

    Args:
        job: the script with its lesson, its seeds and the exercises that are carried.
        channel: to the judge.
    """

    def __init__(self, job: dict[str, Any], channel: Channel) -> None:
        self.pieces: list[list[Any]] = job["pieces"]
        self.seeds: dict[str, int] = job["seeds"]
        self.carried = frozenset(job["carried"])
        self.known: dict[str, Exercise] = {item.id: item for item in exercises_of(find_lesson(job["lesson"]))}
        self.channel = channel
        self.evaluate, self.control_states = evaluate, control_states
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self.namespace = module.__dict__
        self.namespace |= {"get_ipython": _NoIPython, "display": lambda *args, **kwargs: None}

    def run(self) -> None:
        """Run every cell, then what lacked a name once more, then the controls."""
        late = [piece for piece in self.pieces if not self._run_piece(piece, is_last_chance=False)]
        for piece in late:  # cells out of order: what they lacked may be there now
            self._run_piece(piece, is_last_chance=True)
        self.channel.send({"controls": True})
        message, _ = self.channel.receive()
        for exercise_id, programs in message["programs"].items():
            try:
                states = self.control_states(self.known[exercise_id], programs, self.seeds[exercise_id])
            except BaseException:
                states = []
            self.channel.send({"control": exercise_id, "states": states})
        self.channel.send({"end": True})

    def _run_piece(self, piece: list[Any], *, is_last_chance: bool) -> bool:
        """Run one cell and have its answers judged; return False if it lacked a name and there is another chance."""
        name, code, answers = piece
        self.channel.send({"cell": name})
        error: BaseException | None = None
        try:
            file = f"<cell {name}>"
            linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)  # for inspect.getsource
            exec(compile(code, file, "exec"), self.namespace)
        except BaseException as raised:
            if isinstance(raised, NameError) and not is_last_chance:
                return False
            error = raised
        for exercise_id, expression in answers:
            try:
                if error is not None:
                    raise error
                value = eval(compile(expression, f"<answer of {exercise_id}>", "eval"), self.namespace)
            except BaseException as raised:
                self._send_error(exercise_id, raised)
            else:
                self._judge(self.known[exercise_id], value)
        return True

    def _send_error(self, exercise_id: str, error: BaseException) -> None:
        try:
            text = str(error)[:500]
        except Exception:
            text = ""
        self.channel.send({"failed": exercise_id, "error": [type(error).__name__, text]})

    def _judge(self, exercise: Exercise, value: object) -> None:
        if is_blank(value):
            self.channel.send({"blank": exercise.id})
        elif exercise.id not in self.carried:
            self._judge_here(exercise, value)
        elif callable(value):
            self.channel.send({"function": exercise.id})
            serve(self.channel, value)
        else:
            writer = Writer()
            try:
                message = {"value": exercise.id, "is": writer.encode(value)}
            except NotCarried as error:
                self._send_error(exercise.id, TypeError(f"the answer can't be judged: it is {error}"))
                return
            self.channel.send(message, writer.storages)

    def _judge_here(self, exercise: Exercise, value: object) -> None:
        outcome = self.evaluate(exercise, value, self.seeds[exercise.id])
        miss = [outcome.miss.what, outcome.miss.detail, outcome.miss.hint] if outcome.miss else []
        self.channel.send({"here": exercise.id, "state": outcome.state, "miss": miss})


class _NoIPython:
    """Stands in for ``get_ipython()``: every magic does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def quiet() -> None:
    """Throw away whatever this process prints, in C too."""
    sink = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(sink, number)
    with contextlib.suppress(Exception):
        sys.stdout, sys.stderr = open(os.devnull, "w"), open(os.devnull, "w")  # noqa: SIM115
