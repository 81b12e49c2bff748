"""Which exercises can be judged apart from the student's process: measured, with reference and other right answers.

``python -m course_utils.tools.grading.carriable`` measures all exercises and stores the list; a test holds it in step.
"""

from __future__ import annotations

import json
import socket
import threading
from functools import cache
from pathlib import Path
from typing import Any

from course_utils.exercises.judge import evaluate
from course_utils.exercises.reference import answer_of, reference_program
from course_utils.exercises.registry import Exercise, all_exercises
from course_utils.paths import write_text
from course_utils.tools.grading.carry import Channel, NotCarried, Reader, Writer, serve, stand_in

STORED = Path(__file__).with_name("carried.json")
SEEDS = (0, 1, 2)
TIMEOUT_S = 600.0  # for the longest answer, on a busy machine


@cache
def carried() -> frozenset[str]:
    """Return the exercises whose answers are judged apart."""
    return frozenset(json.loads(STORED.read_text(encoding="utf-8")))


def passes_when_carried(exercise: Exercise, answer: Any, seed: int) -> bool:
    """Tell whether an answer that is right still passes when it is carried over a channel."""
    if not callable(answer):
        writer = Writer()
        try:
            message = writer.encode(answer)
        except NotCarried:
            return False
        return evaluate(exercise, Reader(writer.storages).decode(message), seed).passed
    ours, theirs = socket.socketpair()
    server = threading.Thread(target=_serve, args=(Channel(theirs), answer), daemon=True)
    server.start()
    try:
        channel = Channel(ours)
        passed = evaluate(exercise, stand_in(channel, TIMEOUT_S), seed).passed
        channel.send({"done": True})
        server.join(TIMEOUT_S)
        return passed
    finally:
        ours.close(), theirs.close()


def _serve(channel: Channel, answer: Any) -> None:
    try:
        serve(channel, answer)
    except Exception:
        channel.sock.close()  # the judge sees that nobody is there


def can_be_carried(exercise: Exercise) -> bool:
    """Tell whether the reference answer passes when it is carried, as it does when it is not."""
    return all(passes_when_carried(exercise, answer_of(exercise.id, *reference_program(exercise.id)), s) for s in SEEDS)


def main() -> None:
    """Measure and store."""
    found = [exercise.id for exercise in all_exercises() if can_be_carried(exercise)]
    write_text(STORED, json.dumps(found, indent=1) + "\n")
    print(f"{len(found)} of {len(all_exercises())} exercises can be carried.")


if __name__ == "__main__":
    main()
