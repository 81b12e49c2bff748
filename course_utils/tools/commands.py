"""The list of commands, in the order of the help text. Standard library only: it is read before anything is set up."""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "setup": "Create or repair the environment, then say what it has.",
    "lab": "Open JupyterLab on your own copy of the notebooks.",
    "reset": "Take a lesson afresh; your copy is kept as a backup.",
    "update": "Carry your notebooks over to a newer edition of the course.",
    "run": "Execute lessons from top to bottom and write a report.",
    "test": "Run the tests: code, notebooks, exercises.",
    "progress": "Show what you have solved, by lesson and exercise.",
    "claims": "Test what people say about PyTorch on this machine.",
    "doctor": "Examine your own training code.",
    "env": "Report versions, device, threads and data of this machine.",
    "release": "Write the learner edition, without solutions, to hand out.",
    "grade": "Grade submitted notebooks.",
    "demo-class": "Write a class of made submissions to try grading on.",
    "site": "Write the course as web pages that open without a server.",
    "build": "Make the notebooks from their sources (for authors).",
    "bench": "Measure how fast the course is (for maintainers).",
}

CPU_COMMANDS = ("setup", "run", "test", "lab")  # those that take --cpu


def overview() -> str:
    """Return the commands with what they do, one a line."""
    width = max(map(len, COMMANDS))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
