"""Kernels that are forked: a lesson sees no difference, and nothing of the forking process is counted or left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils.tools import preloaded
from course_utils.tools.preloaded import NotForked, Preloaded
from course_utils.tools.report import RunReport
from course_utils.tools.runner import RunOptions, run_course
from tests.tools.running import left_over, marked_processes, outputs_text, write_notebook

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernels are forked on Linux only")

FACTS = r"""
import json, locale, logging, multiprocessing, os, random, resource, signal, sys, tempfile, threading, time, warnings
import numpy as np, sklearn.datasets, torch, torchvision
facts = {
    "arguments": [sys.argv[0], sys.argv[1], len(sys.argv), sys.orig_argv[:4], len(sys.orig_argv)],
    "variables": {k: v for k, v in os.environ.items() if "/course~" not in v and k not in SEVERAL},
    "names": sorted(os.environ), "folder": os.getcwd(), "path": sys.path,
    "session": os.getpid() == os.getsid(0) == os.getpgid(0),
    "parent": os.getppid() == int(os.environ["JPY_PARENT_PID"]),
    "main": [sys.modules["__main__"].__dict__ is globals(), __name__, sorted(n for n in globals() if n[:2] != "_i")],
    "flags": [str(sys.flags), sys.executable, sys.prefix, sys.warnoptions, hash("a")],
    "filters": sorted(map(str, warnings.filters)), "input": os.fstat(0).st_mode,
    "text": [s.encoding + str(s.line_buffering) for s in (sys.__stdin__, sys.__stdout__, sys.__stderr__)],
    "files": len(os.listdir("/proc/self/fd")),
    "signals": {s.name: str(signal.getsignal(s)).split(" at ")[0] for s in signal.Signals},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "priority": os.nice(0),
    "limits": [resource.getrlimit(n) for n in range(10)], "locale": locale.setlocale(locale.LC_ALL),
    "scratch": tempfile.gettempdir() == os.environ["TMPDIR"],
    "threads": sorted(t.name.partition(" ")[0] for t in threading.enumerate()),
    "main thread": threading.main_thread().native_id == os.getpid(),
    "start": [multiprocessing.get_start_method(), multiprocessing.process.ORIGINAL_DIR == os.getcwd()],
    "course": [n for n in sys.modules if n.startswith("course_utils")],
    "logging": [logging.root.level, len(logging.root.handlers)],
    "oom": open("/proc/self/oom_score_adj").read(),
    "compiler": os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(os.environ["TMPDIR"]),
    "found": os.environ["COURSE_RUN_TOKEN"] in open("/proc/self/environ").read(),
    "unlike": ["matplotlib.pyplot" in sys.modules, "tqdm.auto" in sys.modules],
    "torch threads": torch.get_num_threads(),
}
print(json.dumps(facts))
""".replace(
    "SEVERAL", "('COURSE_RUN_TOKEN', 'JPY_PARENT_PID', 'JPY_SESSION_NAME', 'COURSE_KERNELS', 'COURSE_TEST_MARK')"
)
UNSEEDED = """
import json, random
import numpy as np, torch
print(json.dumps([random.random(), np.random.rand(), torch.rand(1, dtype=torch.float64).item()]))
"""
WORK = """
import matplotlib.pyplot as plt, torch
from tqdm.auto import tqdm
torch.manual_seed(1)
layer, data = torch.nn.Linear(64, 64), torch.utils.data.TensorDataset(torch.rand(64, 64))
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for batch, in torch.utils.data.DataLoader(data, 16, num_workers=2):
    optimizer.zero_grad(); loss = layer(batch).pow(2).mean(); loss.backward(); optimizer.step()
print(loss.item(), tqdm, plt.get_backend(), torch.mm(torch.ones(300, 300), torch.ones(300, 300)).sum().item())
plt.plot([1, 2]);
"""
CHILD = """
import subprocess, sys
!echo "$COURSE_PROGRESS"; pwd
print(subprocess.run([sys.executable, '-c', '1']).returncode)
"""
CELLS = (UNSEEDED, FACTS, WORK, CHILD, "import os\nif os.fork() == 0: os._exit(0)\nprint(os.wait()[1])")


def run(folder: Path, how: str, *paths: Path) -> RunReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(preloaded.SWITCH, how)
        report = run_course(RunOptions(lessons=tuple(map(str, paths)), out=folder / how, device="cpu", seed=3, jobs=1))
    assert report.ok, report.summary()
    return report


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunReport]:
    """The same two notebooks in kernels that were started and in kernels that were forked."""
    folder = tmp_path_factory.mktemp("both")
    paths = [write_notebook(folder / f"{name}.ipynb", *CELLS) for name in ("one", "two")]
    with marked_processes() as mark:
        reports = {how: run(folder, how, *paths) for how in ("plain", "forked")}
        assert left_over(mark) == []
    return reports


def shown(both: dict[str, RunReport], how: str, cell: int, name: str = "two") -> str:
    return outputs_text(both[how].out / f"{name}.ipynb", f"c{cell}")


def test_a_forked_kernel_finds_what_a_started_one_finds(both):
    plain, forked = (json.loads(shown(both, how, 2)) for how in ("plain", "forked"))
    assert {name: (plain[name], forked[name]) for name in plain if plain[name] != forked[name]} == {}
    assert plain["found"]
    assert plain["parent"]


def test_a_forked_kernel_gives_the_same_outputs(both):
    for cell in (3, 4, 5):
        assert shown(both, "forked", cell) == shown(both, "plain", cell) != ""
    notebooks = [json.loads((both[how].out / "two.ipynb").read_text()) for how in ("plain", "forked")]
    kinds = [[[sorted(o.get("data", {})) for o in c["outputs"]] for c in n["cells"]] for n in notebooks]
    assert kinds[0] == kinds[1]
    assert "image/png" in str(kinds[0])


def test_without_a_seed_forks_draw_different_numbers(both):
    one, two = (json.loads(shown(both, "forked", 1, name)) for name in ("one", "two"))
    assert all(a != b for a, b in zip(one, two, strict=True))


def test_imports_of_the_forking_process_are_no_part_of_a_notebook(both):
    for started, forked in zip(both["plain"].outcomes, both["forked"].outcomes, strict=True):
        assert forked.notes == started.notes == ()
        assert forked.cpu_seconds < started.cpu_seconds
        assert 20 < forked.peak_mib < started.peak_mib


def test_memory_of_a_fork_is_counted_without_what_it_has_in_common(tmp_path):
    paths = [
        write_notebook(tmp_path / "small.ipynb", "1", "import time; time.sleep(0.5)"),
        write_notebook(tmp_path / "large.ipynb", "block = bytearray(300 * 2**20)", "import time; time.sleep(0.5)"),
        write_notebook(tmp_path / "brief.ipynb", "block = bytearray(300 * 2**20)\ndel block"),
    ]
    small, large, brief = (outcome.peak_mib for outcome in run(tmp_path, "forked", *paths).outcomes)
    assert 5 < small < 200
    assert 300 < large < 500
    assert 250 < brief < 500


def test_a_process_that_cannot_fork_says_so_and_the_kernel_is_started(tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sklearn.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    monkeypatch.setenv("PYTHONPATH", str(broken))
    asked = "import sys; print('torch' in sys.modules)"
    report = run(tmp_path, "forked", write_notebook(tmp_path / "a.ipynb", asked))
    assert outputs_text(report.out / "a.ipynb", "c1") == "False\n"


def test_a_forking_process_that_ends_gives_no_kernel(tmp_path):
    forking = Preloaded()
    env = dict(os.environ) | {preloaded.TOKEN: "x" * 16}
    forking.start(env)
    forking.process.kill()
    with pytest.raises(NotForked):
        forking.fork([sys.executable, "-m", "ipykernel_launcher"], env, str(tmp_path), str(tmp_path / "log"), 30)
    forking.end()
    assert forking.pid is None


def test_the_forking_process_ends_with_the_worker(tmp_path):
    script = (
        "import os, sys; from course_utils.tools.preloaded import Preloaded; p = Preloaded();"
        "p.start(dict(os.environ, COURSE_RUN_TOKEN='x' * 16)); os._exit(0)"
    )
    with marked_processes() as mark:
        subprocess.run([sys.executable, "-c", script], check=True)
        assert left_over(mark, wait_s=40) == []
