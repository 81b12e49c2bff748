"""The benchmark counts what the doctor finds, misses and says wrongly."""

from __future__ import annotations

import pytest

from benchmarks import doctor as benchmark

HEAD = "import torch\nfrom torch import nn\n"
BODY = """
def make():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    batches = [(torch.randn(8, 3), torch.randn(8{shape})) for _ in range(4)]
    return dict(model=model, loader=batches, loss_fn=nn.MSELoss(),
                optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
"""


def _write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_recall_and_false_alarms_are_counted(tmp_path, capsys):
    _write(tmp_path, "bugs/one/buggy.py", HEAD + BODY.format(shape=""))
    _write(tmp_path, "bugs/one/fixed.py", HEAD + BODY.format(shape=", 1"))
    _write(tmp_path, "bugs/two/buggy.py", HEAD + BODY.format(shape=", 1"))  # nothing to find: counts as missed
    _write(tmp_path, "healthy/one/ok.py", HEAD + BODY.format(shape=""))  # not healthy at all: a false alarm
    _write(tmp_path, "healthy/two/ok.py", HEAD)
    benchmark.main(tmp_path)
    printed = capsys.readouterr().out
    assert "1 of 2 faulty programs" in printed
    assert "1 of 2 healthy programs" in printed
    assert "nothing found in: two/buggy.py" in printed
    assert "false alarm in one/ok.py: loss.broadcast" in printed
    assert "without make(): 1" in printed


def test_a_folder_without_cases_is_told(tmp_path):
    with pytest.raises(SystemExit, match="no cases"):
        benchmark.main(tmp_path)
