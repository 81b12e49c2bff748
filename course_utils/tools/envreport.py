"""The environment report: versions, device, threads, determinism, data, and what is wrong with a remedy each."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from course_utils.errors import out_of_memory
from course_utils.paths import ROOT, derived_data, workspace
from course_utils.text import plural, table, without_passwords
from course_utils.tools.requirements import pins, unmet

REPAIR = "run `python3 course.py setup`, which repairs it"


def collect() -> dict[str, Any]:
    """Return the facts of this machine in the shape of ``env --json``; ``problems`` is empty if all is well.

    Never raises: what can't be found out is None, and its problem is a sentence with a remedy.
    """
    problems: list[str] = []
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": None,
        "torchvision": None,
        "cuda": None,
        "device": None,
        "threads": None,
        "deterministic": None,
        "data": [],
        "problems": problems,
        "platform": platform.platform(),
        "cores": usable_cores(),
        "environment": sys.prefix,
        "workspace": str(workspace()),
        "packages": pins(),
    }
    problems += version_problems(report["packages"])
    try:
        report |= torch_facts()
    except Exception as error:  # a broken build can fail in any way, and then a report is wanted most
        problem = out_of_memory(error)
        remedy = problem.fix if problem else f"{REPAIR}."
        problems.append(f"PyTorch can't be imported ({type(error).__name__}: {error}); {remedy[0].lower()}{remedy[1:]}")
    else:
        problems += thread_problems(report["threads"], report["cores"])
        try:
            report["data"] = data_facts()
        except Exception as error:
            problems.append(f"The data can't be read ({type(error).__name__}: {error}); {REPAIR}.")
        problems += [f"{entry['problem']}" for entry in report["data"] if entry["problem"]]
    problems += folder_problems()
    return _without_passwords(report)


def _without_passwords(value: Any) -> Any:
    """Return the report with no password of a proxy or an index in any of its texts."""
    if isinstance(value, dict):
        return {name: _without_passwords(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_passwords(part) for part in value]
    return without_passwords(value) if isinstance(value, str) else value


def torch_facts() -> dict[str, Any]:
    """Return what PyTorch says of itself and of this machine."""
    import torch
    import torchvision

    from course_utils.devices import pick_device

    return {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "cuda": torch.version.cuda,
        "device": str(pick_device()),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def data_facts() -> list[dict[str, object]]:
    """Return an entry for each data set: its name, its number of examples, its problem or an empty text."""
    from course_utils.data import data_status

    return data_status()


def usable_cores() -> int:
    """Return the number of cores this process may use, which a container can make smaller than the machine's."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def version_problems(pinned: dict[str, str]) -> list[str]:
    """Return a sentence for each pinned package that is missing or has another version."""
    return [
        f"{name} is {found}, and the course is written for {pinned[name]}; {REPAIR}."
        if found
        else f"{name} {pinned[name]} is not installed; {REPAIR}."
        for name, found in unmet(pinned).items()
    ]


def thread_problems(threads: int, cores: int) -> list[str]:
    """Return a sentence if PyTorch computes with more threads than there are cores."""
    if threads > cores:
        return [
            f"PyTorch uses {plural(threads, 'thread')} on {plural(cores, 'core')}, which is slow; "
            f"set OMP_NUM_THREADS={cores} before you start."
        ]
    return []


def folder_problems() -> list[str]:
    """Return a sentence for each folder that the course wants to write to and can't."""
    wanted = [
        (workspace(), "your notebooks", "COURSE_WORKSPACE"),
        (derived_data(), "data made on first use", "COURSE_DATA"),
    ]
    return [
        f"The folder for {purpose}, {folder}, can't be written to; set {variable} to one that can."
        for folder, purpose, variable in wanted
        if not can_write(folder)
    ]


def can_write(folder: os.PathLike[str]) -> bool:
    """Say whether files can be made in ``folder``, or in the nearest parent if it does not exist yet."""
    path = os.path.abspath(folder)
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def as_text(report: dict[str, Any]) -> str:
    """Return the report to read, or to paste into a bug report."""
    cuda = report["cuda"] or "none in this build"
    rows = [
        ("Python", report["python"]),
        ("PyTorch", report["torch"] or "missing"),
        ("torchvision", report["torchvision"] or "missing"),
        ("CUDA", cuda if report["torch"] else "unknown"),
        ("device", report["device"] or "unknown"),
        ("threads", f"{report['threads'] or 'unknown'} on {plural(report['cores'], 'core')}"),
        ("deterministic", {True: "on", False: "off", None: "unknown"}[report["deterministic"]]),
        *[(f"data: {entry['name']}", data_text(entry)) for entry in report["data"]],
        ("system", report["platform"]),
        ("environment", report["environment"]),
        ("course", str(ROOT)),
        ("workspace", report["workspace"]),
    ]
    problems = [f"  - {problem}" for problem in report["problems"]]
    ending = ["Problems:", *problems] if problems else ["No problems found."]
    return "\n".join([table(rows, header=("what", "value")), "", *ending])


def data_text(entry: dict[str, Any]) -> str:
    """Return one data set's state in words."""
    return "not usable, see below" if entry["problem"] else f"{plural(entry['examples'], 'example')}, checksum right"
