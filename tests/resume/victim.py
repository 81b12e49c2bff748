"""A training process that is killed from outside again and again, until one is left to finish.

``python -m tests.resume.victim FOLDER SEED KILLS``: the parent imports torch and computes nothing, then forks one child
after the other, so that seconds of imports are paid once. Each child goes on from the newest checkpoint in
FOLDER/killed. After a random time the parent kills it with SIGKILL, which no Python code can see coming. At last one
child runs undisturbed, and one more makes the whole run in FOLDER/quiet without any interruption. Prints for each kill
the number of steps saved by then.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch._dynamo  # noqa: F401  torch would import it in each child, at the first optimizer

from tests.resume.world import World

EPOCHS = 10
STEPS = 3 * EPOCHS
PACE_S = 0.01  # a step takes at least this long, so that the kills fall inside the run


def train(folder: Path) -> None:
    World(folder=folder, interrupt=lambda record: time.sleep(PACE_S)).run(epochs=EPOCHS)


def start(folder: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(folder)
            status = 0
        finally:
            os._exit(status)
    return child


def steps_saved(folder: Path) -> int:
    return max((int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.pt")), default=0)


def main(folder: Path, seed: int, kills: int) -> None:
    draw = random.Random(seed)
    for _ in range(kills):
        child, before = start(folder / "killed"), steps_saved(folder / "killed")
        while steps_saved(folder / "killed") == before < STEPS - 1 and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.001)  # let each child make at least a step, else the sleep below decides everything
        time.sleep(draw.uniform(0, 10 * PACE_S))
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # it had finished
        print(steps_saved(folder / "killed"), flush=True)
    for name in ("killed", "quiet"):
        _, status = os.waitpid(start(folder / name), 0)
        if status:
            sys.exit(f"the run in {name} failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
