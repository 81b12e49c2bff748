"""The list of lessons: the one place from which commands, menus, progress and documents derive theirs."""

from __future__ import annotations

from dataclasses import dataclass

from course_utils.errors import UsageError
from course_utils.text import did_you_mean


@dataclass(frozen=True)
class Lesson:
    """One notebook of the course.

    ``stem`` names its source, notebook and solution (``01_tensors``); ``name`` names its modules and
    prefixes its exercises (``tensors``).
    """

    number: str
    name: str
    title: str
    question: str  # what goes wrong in real projects and is explained here

    @property
    def stem(self) -> str:
        return f"{self.number}_{self.name}"


LESSONS: tuple[Lesson, ...] = (
    Lesson("00", "start", "Start here", "Does everything work on this machine, and how does the course work?"),
    Lesson(
        "01",
        "tensors",
        "Tensors: dtype, device, layout, strides",
        "Why did a reshape scramble my images without any error?",
    ),
    Lesson(
        "02",
        "autograd",
        "Autograd and grad_fn",
        "Why did half of my model never learn, without any error?",
    ),
    Lesson(
        "03",
        "modules",
        "nn.Module and hooks",
        "Why did my frozen network change, although no weight moved?",
    ),
    Lesson(
        "04",
        "data",
        "Dataset and DataLoader",
        "Why does training get slower when I add workers, and why do two of them draw the same random numbers?",
    ),
    Lesson(
        "05",
        "training",
        "The full training loop",
        "Why does the same script train to 98 % on one day and to 90 % on another?",
    ),
    Lesson(
        "06",
        "memory",
        "Memory, mixed precision, compilation",
        "Why does a network of 0.8 MiB need 60 MiB to learn, and why does half the precision not take half of it?",
    ),
    Lesson(
        "07",
        "distributed",
        "Distributed data parallel",
        "Why did the same training on two processes learn something else, and why did it stop without a word?",
    ),
    Lesson(
        "08",
        "export",
        "Export and serving",
        "Why does a model that reads nearly every digit in the notebook misread most of them as a service?",
    ),
    Lesson(
        "09",
        "capstone",
        "Capstone",
        "Why does a network read eight digits well and two of them badly, and why did nobody see it?",
    ),
)


def find_lesson(name: str) -> Lesson:
    """Return the lesson meant by ``01_tensors``, ``01``, ``1`` or ``tensors``.

    Raises:
        UsageError: if no lesson goes by that name.
    """
    for lesson in LESSONS:
        if goes_by(lesson.stem, name):
            return lesson
    raise UsageError(
        f"There is no lesson called {name!r}.", fix=did_you_mean(plain_name(name), [lesson.stem for lesson in LESSONS])
    )


def goes_by(stem: str, name: str) -> bool:
    """Tell whether ``name`` means the lesson with this stem: the stem itself, its number, or its word."""
    number, _, word = stem.partition("_")
    wanted = plain_name(name)
    return wanted in (stem, word) or (wanted.isdecimal() and int(wanted) == int(number))


def plain_name(name: str) -> str:
    """Return a lesson's name as typed, without the ending of a file and in small letters."""
    return name.removesuffix(".ipynb").removesuffix(".py").lower()
