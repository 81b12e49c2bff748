"""Does this machine have what the lessons need beyond arithmetic? Each need is tried, not looked up.

Worker processes, a process group, exporters, a port: each works on nearly every machine and fails on some, in a way
that looks like a fault of the reader's program. A probe tries the thing itself, small, and knows the remedy.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from course_utils.errors import EnvironmentProblem
from course_utils.text import shorten, table

LOOPBACK = "127.0.0.1"
WORKER_TIMEOUT_S = 60.0  # a worker that is started afresh imports torch, which takes seconds on a busy machine
SCRATCH_BYTES = 200 * 2**20  # what one lesson writes at most: checkpoints, exported models, compiled code

REPAIR = "Run `python3 course.py setup`, which repairs the environment."


@dataclass(frozen=True)
class Probe:
    """One thing that a lesson needs.

    Args:
        what: the need, in a few words.
        lesson: number of the first lesson that needs it.
        remedy: what to do if it is missing, one sentence.
        attempt: tries it; raises if it doesn't work.
        required: False if the lesson only leaves out a cell.
    """

    what: str
    lesson: str
    remedy: str
    attempt: Callable[[], object]
    required: bool = True


@dataclass(frozen=True)
class Finding:
    """What a probe met; ``problem`` is empty if it works."""

    probe: Probe
    problem: str = ""

    @property
    def works(self) -> bool:
        return not self.problem


def start_a_worker() -> None:
    """Load one batch through a worker process."""
    dataset = TensorDataset(torch.arange(4))
    loader = DataLoader(dataset, batch_size=4, num_workers=1, timeout=WORKER_TIMEOUT_S)
    (values,) = next(iter(loader))
    if values.tolist() != [0, 1, 2, 3]:
        raise RuntimeError(f"a worker sent {values.tolist()} instead of [0, 1, 2, 3]")


def join_a_process_group() -> None:
    """Add numbers with gloo in a group of one, on the loopback interface. A group that is up already is left alone."""
    if not dist.is_available():
        raise RuntimeError("this PyTorch was built without torch.distributed")
    if dist.is_initialized():
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        total = torch.ones(2)
        dist.all_reduce(total)
    finally:
        dist.destroy_process_group()


def import_exporters() -> None:
    """Import what writes and runs exported models: a package that is there can still lack a library."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        import_module(name)


def import_service() -> None:
    """Import the web framework, its server and a client."""
    for name in ("fastapi", "uvicorn", "httpx"):
        import_module(name)


def open_a_port() -> None:
    """Listen on a free port of the loopback interface and connect to it."""
    with socket.create_server((LOOPBACK, 0)) as server:
        server.settimeout(5)
        with socket.create_connection(server.getsockname(), timeout=5):
            server.accept()[0].close()


def write_scratch_files() -> None:
    """Write a file in the temporary folder, and see that there is room for more."""
    folder = Path(tempfile.gettempdir())
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"course")
    free = shutil.disk_usage(folder).free
    if free < SCRATCH_BYTES:
        raise EnvironmentProblem(f"only {free / 2**20:.0f} MiB are free in the temporary folder")


def find_a_compiler() -> None:
    """Look for the C++ compiler that ``torch.compile`` and ahead-of-time packages use."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl")):
        raise RuntimeError("no C++ compiler on the path")


PROBES = (
    Probe(
        "room for temporary files", "01",
        f"Free {SCRATCH_BYTES / 2**20:.0f} MiB on the disk, or set TMPDIR (Windows: TEMP) to a folder with room.",
        write_scratch_files,
    ),
    Probe(
        "worker processes for loading data", "04",
        "Restart the kernel and try once more; in a container, give it shared memory (Docker: --shm-size=1g).",
        start_a_worker,
    ),
    Probe(
        "a process group (gloo)", "07",
        "Set GLOO_SOCKET_IFNAME to the loopback interface (Linux: lo, macOS: lo0) before starting JupyterLab.",
        join_a_process_group,
    ),
    Probe("exporters and their runtime (ONNX)", "08", REPAIR, import_exporters),
    Probe("a web service (FastAPI)", "08", REPAIR, import_service),
    Probe(
        "a port on this machine", "08",
        "A firewall refuses connections from this machine to itself: allow them for 127.0.0.1.",
        open_a_port,
    ),
    Probe(
        "a C++ compiler", "06",
        "Optional: install g++ or clang (Windows: the Visual Studio build tools). Cells that compile are left out.",
        find_a_compiler, required=False,
    ),
)  # fmt: skip


def examine(probes: Iterable[Probe] = PROBES) -> list[Finding]:
    """Try each probe; one that fails is a finding, never an error."""
    findings = []
    for probe in probes:
        try:
            probe.attempt()
        except Exception as error:
            findings.append(Finding(probe, shorten(f"{type(error).__name__}: {error}", 160)))
        else:
            findings.append(Finding(probe))
    return findings


def findings_table(findings: Iterable[Finding]) -> str:
    """Return the findings as text: what, first lesson, and whether it works here."""
    rows = [(f.probe.what, f.probe.lesson, _word(f)) for f in findings]
    return table(rows, ("what", "from lesson", "here"))


def remedies(findings: Iterable[Finding]) -> list[str]:
    """Return a line for each thing that does not work: what was seen, and what to do."""
    return [f"{f.probe.what}: {f.problem}. {f.probe.remedy}" for f in findings if not f.works]


def summary(findings: Iterable[Finding]) -> str:
    """Return one sentence about all findings; optional things don't count."""
    missing = [f.probe.what for f in findings if f.probe.required and not f.works]
    if not missing:
        return "This machine has what the lessons need."
    return f"Missing on this machine: {', '.join(missing)}. The remedies stand above."


def _word(finding: Finding) -> str:
    return "works" if finding.works else "MISSING" if finding.probe.required else "not there (optional)"
