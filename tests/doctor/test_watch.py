"""A watched loop: each fault is told once, as it happens; healthy loops hear nothing."""

from __future__ import annotations

import gc
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from course_utils import doctor
from course_utils.doctor.findings import ERROR, NOTE, WARNING
from course_utils.errors import UsageError


@pytest.fixture(autouse=True)
def same_weights():
    torch.manual_seed(0)


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


class Root(nn.Module):
    """Has an infinite slope at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.first(x) * 0.0).sqrt())


def data(n: int = 60, features: int = 4, classes: int = 3, size: int = 32) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(size, features), torch.randint(classes, (size,))) for _ in range(n)]


def mlp(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), *(middle or (nn.ReLU(),)), nn.Linear(8, 3))


def train(model, batches, lr=0.01, optimizer=None, loss_fn=F.cross_entropy):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in batches:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()


def only(watching, code):
    findings = watching.report.findings
    assert [finding.code for finding in findings] == [code], watching.report
    return findings[0]


def is_silent(watching):
    return not watching.report.findings and not watching.report.remarks


# What is not finite.


def test_the_module_and_the_batch_of_the_first_nan_are_named(capsys):
    batches = data()
    batches[17][0][5] = -1e6
    model = mlp(nn.Softplus(), Log())
    with doctor.watch(model) as watching:
        train(model, watching(batches))
    finding = only(watching, "numerics.loss-not-finite")
    assert finding.severity == ERROR
    assert {"module": "2", "kind": "Log", "batch": 17, "epoch": 0, "update": 17}.items() <= finding.evidence.items()
    assert finding.evidence["rows"] == (5,)
    printed = capsys.readouterr().out
    assert "In batch 17 of epoch 0 '2' (Log) makes NaN or infinity" in printed
    assert printed.count("numerics.loss-not-finite") == 1


def test_without_the_loader_the_update_is_named():
    batches = data()
    batches[9][0][5] = -1e6
    model = mlp(nn.Softplus(), Log())
    with doctor.watch(model) as watching:
        train(model, batches)
    assert only(watching, "numerics.loss-not-finite").message.startswith("In update 9 '2' (Log)")


def test_the_epoch_is_counted_by_passes_of_the_loader():
    batches = data(5)
    model = mlp(nn.Softplus(), Log())
    with doctor.watch(model) as watching:
        loader = watching(batches)
        train(model, loader)
        batches[2][0][0] = -1e6
        train(model, loader)
    assert "batch 2 of epoch 1" in only(watching, "numerics.loss-not-finite").message
    assert len(loader) == 5


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda x, y: x[1].fill_(math.nan), "What the model gets in batch 3 of epoch 0 holds NaN"),
        (lambda x, y: y[1].fill_(math.inf), r"batch\[1\] holds NaN"),
    ],
)
def test_data_that_are_not_finite_are_told_from_modules_that_make_it(spoil, says):
    batches = [(torch.randn(8, 4), torch.randn(8, 3)) for _ in range(6)]
    spoil(*batches[3])
    model = mlp()
    with doctor.watch(model) as watching:
        train(model, watching(batches), loss_fn=F.mse_loss)
    finding = only(watching, "data.nonfinite")
    assert __import__("re").search(says, finding.message), finding.message
    assert finding.evidence["batch"] == 3


def test_a_loss_function_that_makes_it_is_named():
    model = mlp()
    with doctor.watch(model) as watching:
        train(model, watching(data(4)), loss_fn=lambda outputs, y: (outputs.sum() * 0).log() * 0)
    assert "the loss function made it" in only(watching, "numerics.loss-not-finite").message


def test_a_gradient_that_breaks_on_the_way_back_is_placed_between_two_layers():
    model = Root()
    with doctor.watch(model) as watching:
        train(model, watching(data(3)))
    finding = only(watching, "numerics.nan-gradient")
    assert "between 'last', whose gradients are finite, and 'first'" in finding.message
    assert finding.evidence["batch"] == 0


def test_a_gradient_that_was_not_looked_at_is_told_by_the_weights_it_broke():
    class Sometimes(Root):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x[0, 0] == 5.0 else self.last(self.first(x))

    model, batches = Sometimes(), data(80)
    batches[72][0][0, 0] = 5.0
    with doctor.watch(model) as watching:
        train(model, watching(batches))
    finding = only(watching, "numerics.nan-gradient")
    assert finding.message.startswith(
        "The loss of batch 73 of epoch 0 is not finite: the update of batch 72 of epoch 0"
    )
    assert "between 'last', whose gradients are finite, and 'first'" in finding.message


def test_a_run_that_leaves_all_bounds_is_called_diverged():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    batches = [(torch.randn(16, 4), torch.randn(16, 3)) for _ in range(30)]
    with doctor.watch(model) as watching:
        train(model, watching(batches), lr=30.0, loss_fn=F.mse_loss)
    assert "has diverged" in watching.report.errors[0].message


def test_losses_that_are_read_late_still_tell_the_batch():
    batches = data(80)
    batches[52][0][5] = -1e6
    model = mlp(nn.Softplus(), Log())
    with doctor.watch(model, every=8) as watching:
        train(model, watching(batches))
    finding = only(watching, "numerics.loss-not-finite")
    assert finding.message.startswith("The loss of batch 52 of epoch 0 is not finite. The weights are broken already")
    assert "every=1" in finding.fix


def test_a_loop_that_notices_by_itself_is_told_the_module():
    batches = data(8)
    batches[6][0][5] = -1e6
    model = mlp(nn.Softplus(), Log())

    def careful(outputs, y):
        loss = F.cross_entropy(outputs, y)
        if not loss.isfinite():
            raise FloatingPointError("loss")
        return loss

    with pytest.raises(FloatingPointError), doctor.watch(model) as watching:
        train(model, watching(batches), loss_fn=careful)
    assert "'2' (Log)" in only(watching, "numerics.loss-not-finite").message


def test_a_diagnosis_changes_nothing_of_the_run():
    def run(watched):
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Softplus(), Log(), nn.Linear(8, 3)
        )
        batches = data(12)
        batches[7][0][5] = math.inf
        optimizer = torch.optim.Adam(model.parameters())
        if watched:
            with doctor.watch(model, show=lambda finding: None) as watching:
                train(model, watching(batches), optimizer=optimizer)
            assert watching.report.errors
        else:
            train(model, batches, optimizer=optimizer)
        return [*model.state_dict().values(), torch.get_rng_state()]

    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(run(True), run(False), strict=True))


# Gradients, units, memory, data.


def test_a_gradient_that_explodes_is_told_before_it_is_infinite():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    batches = [(torch.randn(16, 4), torch.randn(16, 3)) for _ in range(40)]
    seen = []
    with doctor.watch(model, show=seen.append) as watching:
        train(model, watching(batches), lr=2.0, loss_fn=F.mse_loss)
    first = seen[0]
    assert (first.code, first.severity) == ("loop.gradient-explodes", WARNING)
    assert first.evidence["length"] > 1000 * first.evidence["lowest_of_late"]


def test_a_gradient_that_vanishes_is_told_with_the_layer():
    layers = [layer for _ in range(12) for layer in (nn.Linear(8, 8), nn.Sigmoid())]
    model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), *layers, nn.Linear(8, 3))
    with doctor.watch(model) as watching:
        train(model, watching(data(90)))
    finding = only(watching, "loop.gradient-vanishes")
    assert "'0.weight'" in finding.message
    assert finding.evidence["share"] < 1e-5


def test_gradients_that_are_exactly_zero_from_the_start_are_a_note():
    model = mlp()
    with doctor.watch(model) as watching:
        train(model, watching(data(90)), loss_fn=lambda outputs, y: (outputs * 0).sum())
    assert only(watching, "loop.gradient-vanishes").severity == NOTE


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Hardtanh(0.0, 6.0)])
def test_dead_units_are_counted_in_front_of_their_layer(activation):
    model = mlp(activation)
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    with doctor.watch(model) as watching:
        train(model, watching(data(120, size=64)))
    finding = next(finding for finding in watching.report.findings if finding.code == "model.dead-units")
    assert "8 of the 8 units that '2' gets" in finding.message
    assert finding.evidence["examples"] >= 500


@pytest.mark.parametrize("what", ["loss in a list", "sum of losses", "output in a list"])
def test_graphs_that_are_kept_are_told(what):
    model, kept, total = mlp(), [], 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with doctor.watch(model) as watching:
        for x, y in watching(data(90)):
            optimizer.zero_grad()
            outputs = model(x)
            loss = F.cross_entropy(outputs, y)
            loss.backward()
            optimizer.step()
            total = total + loss if what == "sum of losses" else 0.0
            kept.append({"loss in a list": loss, "output in a list": outputs}.get(what, loss.item()))
    finding = only(watching, "memory.graph-kept")
    assert finding.evidence["batch"] < 80
    assert finding.evidence["nodes_of_one"] >= 5


class Clock:
    """A clock that the test puts forward."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_tensors_that_pile_up_are_a_note():
    from course_utils.doctor.watching import Watcher

    gc.collect()  # what other tests left must not be freed in between
    model, kept, clock = mlp(), [], Clock()
    batches = data(400)
    fake = FakeTensorMode().from_tensor(torch.ones(3))  # has no memory, and stops nobody
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Watcher(model, clock=clock) as watching:
        for batch in batches:
            train(model, [batch], optimizer=optimizer)
            clock.now += 1.0
            kept.append(torch.zeros(4096))
    finding = only(watching, "memory.grows")
    assert fake.shape == (3,)
    assert finding.severity == NOTE
    assert 0.01 < finding.evidence["mib_per_update"] < 0.03


def test_a_loop_that_waits_for_its_loader_is_told():
    from course_utils.doctor.watching import Watcher

    clock = Clock()

    def slow(batches, wait_s):
        for batch in batches:
            clock.now += wait_s
            yield batch

    for wait_s, codes in [(0.2, ["data.starved"]), (0.02, [])]:
        model = mlp()
        with Watcher(model, clock=clock) as watching:
            for x, y in watching(slow(data(40), wait_s)):
                train(model, [(x, y)])
                clock.now += 0.1
        assert [finding.code for finding in watching.report.findings] == codes
    assert watching.report.is_healthy


# How it is used.


def test_the_watcher_itself_goes_through_its_loader():
    model, batches = mlp(), data(5)
    with doctor.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), batches) as watching:
        assert [x for x, _ in watching] == [x for x, _ in batches]
        assert sum(1 for _ in watching) == 5


def test_findings_can_be_taken_over(capsys):
    seen = []
    model = mlp()
    with doctor.watch(model, show=seen.append) as watching:
        train(model, watching([(torch.full((8, 4), math.nan), torch.zeros(8, dtype=torch.long))]))
    assert [finding.code for finding in seen] == ["data.nonfinite"]
    assert capsys.readouterr().out == ""
    assert "1 error" in str(watching.report)
    assert "data.nonfinite" in watching.report._repr_html_()


def test_a_notebook_gets_html(monkeypatch):
    from course_utils.doctor import watching as module

    IPython = pytest.importorskip("IPython")
    shown = []
    monkeypatch.setattr(module, "in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    model = mlp()
    with doctor.watch(model):
        train(model, [(torch.full((8, 4), math.nan), torch.zeros(8, dtype=torch.long))])
    assert "<code>data.nonfinite</code>" in shown[0]["text/html"]
    assert "error data.nonfinite" in shown[0]["text/plain"]


def test_what_cannot_be_watched_is_refused_in_a_sentence():
    model = mlp()
    for call, says in [
        (lambda: doctor.watch(3), "needs a model"),
        (lambda: doctor.watch([]), "needs a model"),
        (lambda: doctor.watch(model, optimizer=3), "none of PyTorch's"),
        (lambda: doctor.watch(model, every=0), "can't be read so often"),
        (lambda: iter(doctor.watch(model)), "no loader"),
    ]:
        with pytest.raises(UsageError, match=says):
            call()
    with doctor.watch(model) as watching, pytest.raises(UsageError, match="one block"):
        watching.__enter__()
