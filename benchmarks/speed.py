"""The course's loop, loaders and checks beside what people use: groups of ``python3 course.py bench``.

What is compared runs in one process in turns, every other round the other way round, and a result is the median of the
rounds' ratios: the load of the machine meets both sides alike.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import DEADLINE_S, on_cores, surroundings
from benchmarks.peers import PeersMissing, environment
from benchmarks.results import Result
from course_utils.paths import ROOT

PEERS = ("lightning", "skorch", "accelerate")
LOOP_RATIO, PEER_RATIO = 1.02, 1.0
DATA_RATIO = 5.0
CHECK_MS = 300.0
EXPONENT = 1.15  # 1 is linear; measured powers scatter
SIZES = (2_000, 4_000, 8_000, 16_000, 32_000)  # examples
# These train, compile or start processes: it is what they are about.
LONG_CHECKS = {"capstone.train", "capstone.package", "capstone.suspects", "capstone.clinic-run"}
LONG_CLAIMS = {"D003": "starts workers", "D017": "starts workers", "L009": "trains", "R014": "starts ranks"}


def training(repeats: int) -> Iterator[Result]:
    """Yield what a step of `fit` costs, and of the peers, in steps of the bare loop."""
    python, missing = Path(sys.executable), ""
    try:
        python = environment(PEERS)
    except PeersMissing as error:
        missing = str(error)
    for kind, found in json_from(python, "benchmarks.loops", str(repeats)).items():
        yield from compared_loops(kind, found, missing)


def compared_loops(kind: str, found: Mapping[str, Any], missing: str = "") -> Iterator[Result]:
    """Yield the two results of one kind of batches; see `benchmarks.loops` for what ``found`` holds."""
    times, bare = found["ms"], found["ms"]["bare loop"]
    peers = {name: times[name] for name in times if name not in ("bare loop", "fit")}
    equal = [name for name, is_equal in found["equal"].items() if is_equal and name != "bare loop"]
    note = f"final weights equal the bare loop's: {', '.join(equal) or 'none'}. {missing}".strip()
    yield Result(
        name=f"fit over a bare loop, {kind}",
        unit="times",
        runs=ratios(times["fit"], bare),
        goal=LOOP_RATIO,
        others={name: median(ratios(run, bare)) for name, run in peers.items()},
        note=f"a step of the bare loop: {median(bare):.2f} ms; {note}",
    )
    if peers:
        fastest = min(peers, key=lambda name: median(ratios(peers[name], bare)))
        yield Result(
            name=f"fit over the fastest peer, {kind}",
            unit="times",
            runs=ratios(times["fit"], peers[fastest]),
            goal=PEER_RATIO,
            note=f"the fastest is {fastest}",
        )


def data(repeats: int) -> Iterator[Result]:
    """Yield how many times faster digits come than from a ``TensorDataset`` through a ``DataLoader``."""
    from benchmarks.feeding import OURS, OURS_LOADER, PYTORCH

    rates = json_from(Path(sys.executable), "benchmarks.feeding", str(repeats))
    others = {name: median(ratios(run, rates[PYTORCH])) for name, run in rates.items()}
    note = f"{PYTORCH}: {median(rates[PYTORCH]):,.0f} digits per second"
    for name, goal in ((OURS, DATA_RATIO), (OURS_LOADER, None)):
        yield Result(
            name=f"digits from {name} over {PYTORCH}",
            unit="times",
            runs=ratios(rates[name], rates[PYTORCH]),
            goal=goal,
            higher_is_better=True,
            others={peer: ratio for peer, ratio in others.items() if peer not in (OURS, OURS_LOADER, PYTORCH)},
            note=note,
        )


def checks(repeats: int) -> Iterator[Result]:
    """Yield how long a reader waits: the first check, then the slowest of each lesson's checks, hints and claims."""
    from course_utils.claims.ledger import claims_of
    from course_utils.exercises.registry import exercises_of
    from course_utils.lessons import LESSONS

    opening = [checked("first check", ["tensors.energy"])["tensors.energy"] for _ in range(repeats)]
    yield Result(name="the first check of a kernel", unit="ms", runs=opening, goal=CHECK_MS)
    for lesson in LESSONS:
        exercises = [exercise.id for exercise in exercises_of(lesson)]
        yield from slowest(f"{lesson.stem}: check", checked("check", exercises), LONG_CHECKS)
        yield from slowest(f"{lesson.stem}: hint", checked("hint", exercises), ())
        claims = [claim.id for claim in claims_of(lesson)]
        # An export or a compilation takes seconds, and nearly all claims of that lesson need one.
        excused = claims if lesson.name == "export" else LONG_CLAIMS
        yield from slowest(f"{lesson.stem}: claim", checked("claim", claims), excused)


def checked(kind: str, names: Sequence[str]) -> dict[str, float]:
    """Return the milliseconds of each call, measured in one new process."""
    return json_from(Path(sys.executable), "benchmarks.checking", kind, *names) if names else {}


def slowest(name: str, times: Mapping[str, float], excused: Any) -> Iterator[Result]:
    """Yield the slowest call of a kind; those in ``excused`` are listed and not judged."""
    judged = {call: ms for call, ms in times.items() if call not in excused}
    long = [f"{call} {ms:,.0f}" for call, ms in times.items() if call in excused and ms > CHECK_MS]
    if not judged:
        return
    worst = max(judged, key=judged.__getitem__)
    note = f"{worst}; the median is {median(judged.values()):.1f}" + (
        f"; not judged: {', '.join(long)}" if long else ""
    )
    yield Result(name=name, unit="ms", runs=[judged[worst]], goal=CHECK_MS, note=note)


def growth(repeats: int) -> Iterator[Result]:
    """Yield the power with which time grows as data and training grow: 1 is linear."""
    import torch
    from torch import nn

    from course_utils.data import Batches
    from course_utils.training import fit

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        labels = torch.zeros(SIZES[-1], dtype=torch.int64)
        images = torch.zeros(SIZES[-1], 64)

        def load(count: int) -> None:
            for _ in Batches(images[:count], labels[:count], 64, torch.Generator().manual_seed(0)):
                pass

        def train(count: int) -> None:
            model = nn.Linear(64, 10)
            batches = Batches(images[:count], labels[:count], 64)
            fit(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), batches)

        for what, work in (("a pass over the data", load), ("fit", train)):
            work(SIZES[0])  # warm
            powers = [power(SIZES, [thread_seconds(work, count) for count in SIZES]) for _ in range(repeats)]
            yield Result(
                name=f"{what}: time grows with the number of examples to the power",
                unit="",
                runs=powers,
                goal=EXPONENT,
                note=f"{SIZES[0]:,} to {SIZES[-1]:,} examples",
            )
    finally:
        torch.set_num_threads(threads)


def power(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the line fitted to the logarithms: ``values`` grow like ``sizes`` to this power."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def thread_seconds(work: Any, count: int) -> float:
    """Return the time that this thread works."""
    before = time.thread_time()
    work(count)
    return time.thread_time() - before


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return round by round what ours is over theirs."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def json_from(python: Path, module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of the benchmarks in a new process on one thread and return what it prints."""
    with on_cores(2):
        ended = subprocess.run(
            [str(python), "-m", module, *arguments],
            cwd=ROOT,
            env=surroundings(OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    if ended.returncode:
        raise RuntimeError(f"{module} ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")
    return json.loads(ended.stdout.splitlines()[-1])
