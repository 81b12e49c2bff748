"""Keep a student's process from harming anything: name spaces where the system allows them, limits everywhere (POSIX).

Three levels, the strongest that works here:

- ``bubblewrap``: the whole grading process runs in a sandbox of its own, and each student's in a further one;
- ``namespaces``: no network, no other processes in reach, the file system read-only but for a small folder;
- ``limits``: processor time, memory, file size and open files are bounded, and nothing more. Network and files are not.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_utils.paths import ROOT

BUBBLEWRAP, NAMESPACES, LIMITS = "bubblewrap", "namespaces", "limits"
HIDDEN = ("notebooks/source", "notebooks/solutions", "tests", ".git", "workspace")  # below the checkout: answers

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000  # sched.h
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18

# Variables that a graded process gets. Whoever grades may have tokens and passwords in others.
_HARMLESS = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|TEMP|TMP|LD_LIBRARY_PATH|DYLD_\w+|VIRTUAL_ENV|MPLBACKEND"
    r"|(?:OMP|KMP|GOMP|MKL|OPENBLAS|BLIS|VECLIB|NUMEXPR|ATEN|ONEDNN|DNNL|CUDA|NVIDIA|TORCH|PYTORCH|PYTHON|COURSE)\w*"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH")


@dataclass(frozen=True)
class Allowance:
    """What one submission may take."""

    seconds: float = 120.0  # of the clock, for everything
    cell_seconds: float = 30.0  # of the clock, for one cell and the checks of its answers
    cpu_seconds: float = 120.0
    memory_bytes: int = 2 * 2**30  # beyond what is loaded before it starts
    processes: int = 64
    file_bytes: int = 64 * 2**20  # of one file
    disk_bytes: int = 256 * 2**20  # of all files together
    open_files: int = 256


def sandboxed(command: Sequence[str], scratch: Path, hidden: Sequence[Path] = ()) -> list[str]:
    """Return the command, run by bubblewrap if it is installed and works.

    Args:
        command: what to run.
        scratch: the one folder that stays writable.
        hidden: folders and files that can't be read inside.
    """
    program = shutil.which("bwrap")
    if program is None:
        return list(command)
    wrapped = [
        program, "--die-with-parent", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-pid",
        "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
        *(word for name in HIDDEN if (ROOT / name).is_dir() for word in ("--tmpfs", str(ROOT / name))),
        *(word for place in hidden if place.is_dir() for word in ("--tmpfs", str(place))),
        *(word for place in hidden if place.is_file() for word in ("--ro-bind", os.devnull, str(place))),
        "--bind", str(scratch), str(scratch),
    ]  # fmt: skip
    try:
        works = subprocess.run([*wrapped, "true"], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        works = False
    return [*wrapped, *command] if works else list(command)


def harmless(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that the code of others may see."""
    return {name: text for name, text in environ.items() if _HARMLESS.fullmatch(name) and not _SECRET.search(name)}


def limit(allowance: Allowance) -> None:
    """Set resource limits for this process and all it starts."""
    import resource

    def lower(what: int, value: int) -> None:
        _, hard = resource.getrlimit(what)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (value, value))

    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_CPU, int(allowance.cpu_seconds) + 1)
    lower(resource.RLIMIT_FSIZE, allowance.file_bytes)
    lower(resource.RLIMIT_NOFILE, allowance.open_files)
    lower(resource.RLIMIT_AS, _address_space_bytes() + allowance.memory_bytes)
    if hasattr(resource, "RLIMIT_NPROC"):
        lower(resource.RLIMIT_NPROC, allowance.processes)


def _address_space_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 2**36


def may_hide(places: Sequence[Path], needed: Sequence[Path]) -> list[Path]:
    """Return the places, resolved, that hold nothing of what is needed."""
    wanted = [path.resolve() for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix), *needed)]
    found = [place.resolve() for place in places]
    return [place for place in found if not any(path.is_relative_to(place) for path in wanted)]


def separate(folder: Path, allowance: Allowance, hidden: Sequence[Path] = ()) -> bool:
    """Put this process into name spaces of its own; return whether the system allows it (Linux).

    Afterwards there is no network, the file system is read-only but for ``folder``, which is in memory and bounded,
    the course's sources and solutions and what is ``hidden`` are gone, and processes that are started next see only
    one another.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_NEWUSER | _NEWNS | _NEWIPC | _NEWNET | _NEWPID) != 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError:
        return False

    with contextlib.suppress(OSError):  # no name spaces below this one, in which nobody would count its processes
        Path("/proc/sys/user/max_user_namespaces").write_text("0")

    def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> bool:
        words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
        return libc.mount(*words, flags, None if data is None else data.encode()) == 0

    if not mount(None, "/", None, _MS_REC | _MS_PRIVATE):
        return False
    for place in (*(ROOT / name for name in HIDDEN), *hidden):
        if place.is_dir():
            mount("none", str(place), "tmpfs", _MS_NOSUID | _MS_NODEV, "size=4k")
        elif place.is_file():
            mount(os.devnull, str(place), None, _MS_BIND)
    mount("/", "/", None, _MS_BIND | _MS_REC)
    size = f"size={allowance.disk_bytes}"
    for place in (str(folder), "/dev/shm"):
        if Path(place).is_dir():
            mount("none", place, "tmpfs", _MS_NOSUID | _MS_NODEV, size)
    kept = {str(folder), "/dev/shm", "/proc", "/dev"}
    for target in _mount_points():
        if target not in kept and not any(target.startswith(f"{place}/") for place in kept):
            mount(None, target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID)
    return True


def _mount_points() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4].encode().decode("unicode_escape") for line in lines]


def drop_privileges() -> None:
    """Give up what root may do: in name spaces of its own nothing is left of it outside, but inside it still counts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform.startswith("linux"):
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        for capability in range(64):
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def end_with_parent() -> None:
    """Have this process killed when the one that made it ends (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL


def count_apart(pid: int) -> int | None:
    """Return how many processes live in the name space that a process made for its children.

    Others are not counted: a notebook that is graded at the same time may start as many as it likes. None where the
    system doesn't tell, or the process has no name space of its own.
    """
    try:
        ours, theirs = os.readlink("/proc/self/ns/pid"), os.readlink(f"/proc/{pid}/ns/pid_for_children")
        names = os.listdir("/proc")
    except OSError:
        return None
    if theirs == ours:
        return None
    count = 0
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError):
                count += os.readlink(f"/proc/{name}/ns/pid") == theirs
    return count
