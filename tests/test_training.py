"""The loop: each power does what it says, is right at the short last batch, and leaves everything as it was."""

from __future__ import annotations

import math
import re
import warnings
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from course_utils import training
from course_utils.errors import CourseError, DataError, UsageError
from course_utils.metrics import accuracy
from course_utils.records import Epoch, Step
from course_utils.seeding import preserved_rng, rng_state, stream
from course_utils.training import (
    KeepBest,
    NonFiniteError,
    StopTraining,
    accumulate_gradients,
    clip_gradients,
    evaluate,
    evaluating,
    fit,
    logging_to,
    n_examples,
    to_device,
    update,
)
from tests.resume.world import first_difference

N, D, C = 11, 4, 3  # examples, features, classes


@pytest.fixture(autouse=True)
def _own_rng():
    with preserved_rng():
        yield


@pytest.fixture
def data():
    generator = stream(0, "data")
    x = torch.randn(N, D, generator=generator)
    return x, (x @ torch.randn(D, C, generator=generator)).argmax(1)


@pytest.fixture
def batches(data):
    return list(zip(data[0].split(3), data[1].split(3), strict=True))  # 3, 3, 3 and 2 examples


def linear(**options) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(D, C, **options)


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr)


def train(batches, model=None, **options):
    """Fit a linear model by SGD; return it and the run."""
    model = linear() if model is None else model
    return model, fit(model, F.cross_entropy, options.pop("optimizer", None) or sgd(model), batches, **options)


def bare_loop(model, batches, epochs):
    optimizer, losses = sgd(model), []
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


# --- evaluating, evaluate


def test_evaluating_puts_back_the_mode_of_each_submodule():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[1].eval()
    with pytest.raises(KeyError), evaluating(model):  # noqa: PT012  the block is what is tested
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        raise KeyError
    assert [module.training for module in model] == [True, False, True]
    assert torch.is_grad_enabled()


def test_evaluate_weighs_each_example_alike(data, batches):
    model, whole = linear(), [data]
    metrics = {"accuracy": accuracy}
    small, big = evaluate(model, F.cross_entropy, batches, metrics), evaluate(model, F.cross_entropy, whole, metrics)
    assert small == pytest.approx(big)
    assert small["accuracy"] == pytest.approx(accuracy(model(data[0]), data[1]))
    unweighted = sum(accuracy(model(x), y) for x, y in batches) / len(batches)
    assert abs(unweighted - big["accuracy"]) > 1e-3  # so this data would show the mistake


def test_evaluate_leaves_modes_generators_and_gradients_alone(data):
    model = nn.Sequential(nn.Dropout(), nn.Linear(D, C))
    loader = DataLoader(TensorDataset(*data), 2, shuffle=True, generator=stream(0, "own"))
    before, own = rng_state(), loader.generator.get_state()
    evaluate(model, F.cross_entropy, loader)
    assert first_difference(rng_state(), before) is None
    assert torch.equal(loader.generator.get_state(), own)
    assert model.training
    assert model[1].weight.grad is None


def test_a_run_is_the_same_whether_it_is_evaluated_or_not(data):
    def run(**options):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Dropout(), nn.Linear(D, C))
        return train(DataLoader(TensorDataset(*data), 2, shuffle=True), model, epochs=3, **options)[1].losses

    assert run() == run(validation=DataLoader(TensorDataset(*data), 2, shuffle=True))


def test_evaluate_refuses_an_empty_loader():
    with pytest.raises(DataError, match="nothing to evaluate") as caught:
        evaluate(linear(), F.cross_entropy, iter([]))
    assert "one pass" in caught.value.fix


# --- the plain loop


def test_fit_is_the_bare_loop(batches):
    model, run = train(batches, epochs=3)
    twin = linear()
    assert list(run.losses) == bare_loop(twin, batches, epochs=3)
    assert torch.equal(model.weight, twin.weight)
    assert run.n_examples == (3, 3, 3, 2) * 3
    assert run.stopped_by == "epochs"


def test_the_loss_of_an_epoch_is_a_mean_over_examples(batches):
    _, run = train(batches)
    assert run.epochs[0].loss == pytest.approx(sum(a * n for a, n in zip(run.losses, (3, 3, 3, 2), strict=True)) / N)


def test_fit_takes_tuples_dicts_and_several_inputs(data):
    x, y = data

    class Two(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs["left"] + inputs["right"])

    torch.manual_seed(0)
    model = Two(D, C)
    two = [({"left": x / 2, "right": x / 2}, [y])]
    run = fit(model, lambda logits, labels: F.cross_entropy(logits, labels[0]), sgd(model), two)
    assert run.losses == train([data])[1].losses
    assert run.n_examples == (N,)


def test_moving_keeps_the_form_of_a_batch():
    Pair = namedtuple("Pair", "x y")
    batch = Pair({"a": [torch.ones(1)]}, ("text", torch.ones(2)))
    moved = to_device(batch, torch.device("meta"))
    assert isinstance(moved, Pair)
    assert moved.x["a"][0].device.type == moved.y[1].device.type == "meta"
    assert moved.y[0] == "text"


def test_examples_are_counted_by_the_labels_or_else_by_the_inputs():
    assert n_examples((torch.ones(7, 2), torch.ones(3))) == 3
    assert n_examples(({"a": torch.ones(5, 2)}, None)) == 5


def test_batches_may_be_a_function_of_the_epoch(batches):
    asked = []

    def of_epoch(epoch):
        asked.append(epoch)
        return batches if epoch % 2 == 0 else batches[::-1]

    _, run = train(of_epoch, epochs=3)
    assert asked == [0, 1, 2]
    assert run.n_examples == (3, 3, 3, 2, 2, 3, 3, 3, 3, 3, 3, 2)


def test_batches_of_unknown_number_are_fine(data):
    class Stream(IterableDataset):
        def __iter__(self):
            return zip(*data, strict=True)

    _, run = train(DataLoader(Stream(), 3), epochs=2, max_steps=6, progress=False)
    assert run.n_examples == (3, 3, 3, 2, 3, 3)


def test_a_model_in_eval_mode_trains_in_train_mode_and_is_put_back(batches):
    model = nn.Sequential(nn.Linear(D, C), nn.Dropout()).eval()
    modes = []
    train(batches, model, observers=[lambda record: modes.append(model[1].training)])
    assert all(modes)
    assert not model.training
    assert not model[1].training


def test_a_frozen_batchnorm_stays_frozen(batches):
    model = nn.Sequential(nn.Linear(D, C), nn.BatchNorm1d(C))
    model[1].eval()
    train(batches, model, validation=batches, epochs=2)
    assert model[1].num_batches_tracked == 0
    assert model.training


def test_modes_are_put_back_when_training_fails(batches):
    model = nn.Sequential(nn.Linear(D, C), nn.Dropout()).eval()
    with pytest.raises(DataError):
        train([*batches, 5], model)
    assert not model[1].training


# --- who steps when


def test_the_step_schedule_moves_after_each_step_and_the_run_keeps_the_rates_that_were_used(batches):
    model = linear()
    optimizer = sgd(model, lr=1.0)
    _, run = train(batches, model, optimizer=optimizer, step_schedule=schedules.ExponentialLR(optimizer, 0.5), epochs=2)
    assert run.lrs == tuple(0.5**i for i in range(8))
    assert optimizer.param_groups[0]["lr"] == 0.5**8
    assert [epoch.lr for epoch in run.epochs] == [0.5**3, 0.5**7]


def test_the_epoch_schedule_moves_after_each_epoch(batches):
    model = linear()
    optimizer = sgd(model, lr=1.0)
    _, run = train(batches, model, optimizer=optimizer, epoch_schedule=schedules.StepLR(optimizer, 1, 0.5), epochs=3)
    assert run.lrs == (1.0,) * 4 + (0.5,) * 4 + (0.25,) * 4


def test_onecycle_may_use_its_last_step(batches):
    model = linear()
    optimizer = sgd(model)
    _, run = train(batches, model, optimizer=optimizer, step_schedule=schedules.OneCycleLR(optimizer, 1.0, 4))
    assert run.lrs[-1] == pytest.approx(1.0 / 25 / 1e4)


@pytest.mark.parametrize("monitor", ["loss", "accuracy"])
def test_plateau_sees_the_monitored_number_of_the_validation(batches, data, monitor):
    model = linear()
    optimizer = sgd(model)
    plateau = schedules.ReduceLROnPlateau(optimizer)
    seen = []
    plateau.step = seen.append
    _, run = train(
        batches,
        model,
        optimizer=optimizer,
        epoch_schedule=plateau,
        epochs=2,
        monitor=monitor,
        validation=[data],
        metrics={"accuracy": accuracy},
    )
    assert tuple(seen) == run.curve(monitor)


def test_plateau_sees_the_training_loss_when_there_is_no_validation(batches):
    model = linear()
    optimizer = sgd(model)
    plateau = schedules.ReduceLROnPlateau(optimizer)
    seen = []
    plateau.step = seen.append
    _, run = train(batches, model, optimizer=optimizer, epoch_schedule=plateau)
    assert seen == [run.epochs[0].loss]


# --- clipping, accumulation


def test_clipping_keeps_the_direction_limits_the_length_and_returns_the_length_before():
    p, q = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [p]}, {"params": [q]}], lr=1.0)
    p.grad, q.grad = torch.tensor([2.0, 3.0]), torch.tensor([6.0])
    assert clip_gradients(optimizer, 1.0).item() == 7.0
    assert torch.allclose(torch.cat([p.grad, q.grad]), torch.tensor([2.0, 3.0, 6.0]) / 7)


def test_the_run_keeps_the_norms_before_clipping(batches):
    norms = []
    model = linear()

    def observe(record):
        if isinstance(record, Step):
            norms.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())

    _, run = train(batches, model, clip_norm=0.1, observers=[observe])
    assert max(norms) < 0.1001
    assert min(run.grad_norms) > 0.1
    assert train(batches)[1].grad_norms == (None,) * 4


@pytest.mark.parametrize("window", [1, 2, 3, 4, 9])
def test_accumulating_equals_the_big_batch_at_the_short_last_window_too(data, batches, window):
    """Windows of the batches 3, 3, 3, 2 against one batch of the same examples."""
    x, y = (part.double() if part.is_floating_point() else part for part in data)
    small = list(zip(x.split(3), y.split(3), strict=True))
    big = list(zip(x.split(3 * window), y.split(3 * window), strict=True))
    accumulated, run = train(small, linear(dtype=torch.float64), accumulate=window, epochs=2)
    reference, expected = train(big, linear(dtype=torch.float64), epochs=2)
    assert run.losses == pytest.approx(expected.losses, rel=1e-12)
    assert run.n_examples == expected.n_examples
    assert torch.allclose(accumulated.weight, reference.weight, rtol=1e-12, atol=0)


def test_accumulating_the_naive_way_would_differ_here(data, batches):
    model, naive = linear(), linear()
    accumulate_gradients(model, F.cross_entropy, batches)
    for x, y in batches:
        (F.cross_entropy(naive(x), y) / len(batches)).backward()
    assert not torch.allclose(model.weight.grad, naive.weight.grad, rtol=1e-3)


# --- mixed precision


def test_autocast_is_on_for_the_model_and_the_loss_and_in_the_validation(batches):
    seen = []

    def loss_fn(logits, labels):
        seen.append((logits.dtype, torch.is_autocast_enabled("cpu")))
        return F.cross_entropy(logits, labels)

    model = linear()
    run = fit(model, loss_fn, sgd(model), batches, validation=batches, amp=torch.bfloat16)
    assert set(seen) == {(torch.bfloat16, True)}
    assert len(seen) == 8
    assert model.weight.dtype == torch.float32
    assert run.losses != train(batches)[1].losses


def test_bfloat16_needs_no_scaler_and_float16_gets_one(batches, monkeypatch):
    made = []
    monkeypatch.setattr(training, "GradScaler", lambda device: made.append(device) or GradScaler(device, 4.0))
    train(batches, amp=torch.bfloat16)
    assert made == []
    train(batches, amp=torch.float16)
    assert made == ["cpu"]


def test_a_scaler_changes_nothing_that_one_can_see(batches):
    """Powers of two cancel exactly, so only an error in the order of unscaling and clipping could show."""
    options = {"clip_norm": 0.1, "accumulate": 2, "epochs": 2}
    gradients = {True: [], False: []}

    def trained(is_scaled):
        model = linear()

        def observe(record):
            if isinstance(record, Step):
                gradients[is_scaled].append(model.weight.grad.clone())

        scaler = GradScaler("cpu", init_scale=1024.0) if is_scaled else None
        return train(batches, model, scaler=scaler, observers=[observe], **options)

    (model, run), (twin, expected) = trained(True), trained(False)
    assert run == expected
    assert torch.equal(model.weight, twin.weight)
    assert first_difference(gradients[True], gradients[False]) is None


def test_a_skipped_update_moves_neither_weights_nor_schedule(batches):
    model = linear()
    optimizer = sgd(model)
    scaler = GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    weights, steps = [], []

    def steep(logits, labels):
        return 100 * F.cross_entropy(logits, labels)

    def observe(record):
        if isinstance(record, Step):
            weights.append(model.weight.detach().clone())
            steps.append(record)

    start = model.weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns when a schedule moves before the first update
        run = fit(
            model,
            steep,
            optimizer,
            batches,
            epochs=3,
            clip_norm=1.0,
            step_schedule=schedules.ExponentialLR(optimizer, 0.5),
            scaler=scaler,
            observers=[observe],
        )
    n = len(run.skipped)
    assert 3 <= n < 12
    assert run.skipped == tuple(range(n))  # the scale halves until it fits
    assert [step.was_skipped for step in steps] == [True] * n + [False] * (12 - n)
    assert all(torch.equal(weight, start) for weight in weights[:n])
    assert not torch.equal(weights[n], start)
    assert run.lrs == (0.1,) * n + tuple(0.1 * 0.5**i for i in range(12 - n))
    assert run.grad_norms[:n] == (None,) * n
    assert all(math.isfinite(norm) for norm in run.grad_norms[n:])


def test_update_tells_whether_it_was_made():
    model = linear()
    optimizer, scaler = sgd(model), GradScaler("cpu", init_scale=2.0)
    for value, is_made in ((1.0, True), (math.inf, False), (math.nan, False), (1.0, True)):
        optimizer.zero_grad()
        scaler.scale(model(torch.full((1, D), value)).sum()).backward()
        assert update(optimizer, scaler) is is_made
    assert update(optimizer)


def test_a_scale_that_grows_is_not_taken_for_a_skip():
    model = linear()
    optimizer, scaler = sgd(model), GradScaler("cpu", init_scale=2.0, growth_interval=1)
    scaler.scale(model(torch.ones(1, D)).sum()).backward()
    assert update(optimizer, scaler)
    assert scaler.get_scale() == 4.0


# --- stopping


class Lookup(nn.Module):
    """A model whose validation loss in epoch i is what we want: it counts its epochs and has one weight."""

    def __init__(self, values):
        super().__init__()
        self.values, self.weight = values, nn.Parameter(torch.zeros(()))
        self.register_buffer("epoch", torch.tensor(-1))

    def forward(self, x):
        if self.training:
            self.epoch += 1
        return self.weight * x


def fit_values(values, best, **options):
    """One step per epoch; the validation loss of epoch i is values[i]."""
    model = Lookup(values)

    def loss_fn(outputs, labels):
        return outputs.sum() if model.training else torch.tensor(model.values[int(model.epoch)])

    batch = [(torch.ones(1), torch.ones(1))]
    run = fit(model, loss_fn, sgd(model, 1.0), batch, epochs=len(values), validation=batch, best=best, **options)
    return model, run


def test_the_best_weights_come_back_and_patience_ends_the_run():
    model, run = fit_values([5.0, 3.0, 4.0, 3.0, 6.0, 1.0], KeepBest(patience=3))
    assert run.stopped_by == "patience"
    assert len(run.epochs) == 5  # three epochs in a row that were not better than 3.0
    assert run.best_epoch == 1
    assert [epoch.is_best for epoch in run.epochs] == [True, True, False, False, False]
    assert (model.weight.item(), int(model.epoch)) == (-2.0, 1)  # weights and buffers after two steps of -1


def test_without_patience_the_best_of_all_epochs_is_kept():
    model, run = fit_values([5.0, 3.0, 4.0, 3.0, 6.0, 1.0], KeepBest())
    assert (run.stopped_by, run.best_epoch, model.weight.item()) == ("epochs", 5, -6.0)


def test_more_can_be_better():
    model, run = fit_values([5.0, 3.0, 8.0, 7.0], KeepBest("max"))
    assert (run.best_epoch, model.weight.item()) == (2, -3.0)


def test_an_improvement_must_exceed_min_delta():
    _, run = fit_values([5.0, 4.6, 4.4, 4.0], KeepBest(min_delta=0.5))
    assert [epoch.is_best for epoch in run.epochs] == [True, False, True, False]


def test_nan_is_never_the_best():
    model, run = fit_values([math.nan, 5.0, math.nan, math.nan], KeepBest(patience=2))
    assert [epoch.is_best for epoch in run.epochs] == [False, True, False, False]
    assert (run.best_epoch, model.weight.item()) == (1, -2.0)
    model, run = fit_values([math.nan] * 3, KeepBest())
    assert (run.best_epoch, model.weight.item()) == (None, -3.0)


def test_keep_best_starts_anew_in_a_new_run():
    best = KeepBest()
    fit_values([1.0], best)
    _, run = fit_values([5.0, 6.0], best)
    assert run.best_epoch == 0


def test_kept_weights_are_a_copy():
    best, model = KeepBest(), linear()
    best.update(1.0, 0, model)
    kept = best.weights["weight"].clone()
    with torch.no_grad():
        model.weight += 1
    assert torch.equal(best.weights["weight"], kept)


def test_max_steps_inside_an_epoch_leaves_it_open(batches):
    _, run = train(batches, epochs=5, max_steps=6, validation=batches, best=KeepBest())
    assert (run.n_steps, len(run.epochs), run.stopped_by, run.best_epoch) == (6, 1, "max_steps", None)


def test_max_steps_at_the_end_of_an_epoch_finishes_it(batches):
    _, run = train(batches, epochs=5, max_steps=8)
    assert (run.n_steps, len(run.epochs), run.stopped_by) == (8, 2, "max_steps")
    _, run = train(batches, epochs=2, max_steps=8)
    assert (run.n_steps, len(run.epochs), run.stopped_by) == (8, 2, "epochs")


# --- observers


def test_observers_see_each_step_and_each_epoch_in_order(batches):
    seen = []
    _, run = train(batches, epochs=2, accumulate=2, validation=batches, observers=[seen.append])
    assert [type(record) for record in seen] == [Step, Step, Epoch] * 2
    steps = [record for record in seen if isinstance(record, Step)]
    assert [(s.index, s.epoch, s.batch, s.n_examples) for s in steps] == [
        (0, 0, 0, 6),
        (1, 0, 2, 5),
        (2, 1, 0, 6),
        (3, 1, 2, 5),
    ]
    assert tuple(step.loss for step in steps) == run.losses
    assert tuple(record for record in seen if isinstance(record, Epoch)) == run.epochs


def test_an_observer_sees_the_gradients_of_its_step_after_the_update(data):
    model = linear()
    gradient = torch.autograd.grad(F.cross_entropy(model(data[0]), data[1]), model.weight)[0]
    start = model.weight.detach().clone()

    def observe(record):
        if isinstance(record, Step):
            assert torch.equal(model.weight.grad, gradient)
            assert torch.allclose(model.weight, start - 0.1 * gradient)

    train([data], model, observers=[observe])


def test_an_observer_can_end_the_run(batches):
    def stop(record):
        if isinstance(record, Step) and record.index == 2:
            raise StopTraining("the loss ran away")

    _, run = train(batches, epochs=3, observers=[stop])
    assert (run.n_steps, run.stopped_by) == (3, "the loss ran away")


def test_stopping_early_still_gives_the_best_weights(batches):
    def stop(record):
        if isinstance(record, Step) and record.index == 6:
            raise StopTraining

    model, run = train(batches, epochs=3, validation=batches, best=KeepBest(), observers=[stop])
    twin, _ = train(batches)
    assert (run.best_epoch, run.stopped_by) == (0, "observer")
    assert torch.equal(model.weight, twin.weight)


def test_the_error_of_an_observer_is_not_swallowed(batches):
    def fail(record):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(batches, observers=[fail])


def test_the_progress_bar_shows_the_steps_and_changes_no_result(batches, capsys):
    quiet = train(batches, epochs=2)[1]
    assert capsys.readouterr() == ("", "")
    shown = train(batches, epochs=2, progress=True, validation=batches)[1]
    text = capsys.readouterr().err
    assert shown.losses == quiet.losses
    assert "8/8" in text
    assert "validation loss=" in text
    train(batches, epochs=2, accumulate=3, max_steps=3, progress=True)
    assert "3/3" in capsys.readouterr().err
    train(lambda epoch: batches, progress=True)
    assert "4step" in capsys.readouterr().err


def test_tensorboard_gets_every_number_and_a_resumed_log_replaces_its_end(batches, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read():
        events = EventAccumulator(str(tmp_path))
        events.Reload()
        return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}, events

    model = linear()
    with logging_to(tmp_path, model) as log:
        _, run = train(batches, model, epochs=2, validation=batches, clip_norm=1.0, observers=[log])
    numbers, events = read()
    assert numbers["step/loss"] == pytest.approx(dict(enumerate(run.losses)))
    assert numbers["step/grad_norm"] == pytest.approx(dict(enumerate(run.grad_norms)))
    assert numbers["step/lr"] == pytest.approx(dict.fromkeys(range(8), 0.1))
    assert numbers["validation/loss"] == pytest.approx({3: run.curve()[0], 7: run.curve()[1]})
    assert set(events.Tags()["histograms"]) == {
        f"{what}/{p}" for what in ("weights", "gradients") for p in ("weight", "bias")
    }
    with logging_to(tmp_path) as log:  # a resume from step 5: what was written from there on is hidden
        log(Step(5, 99.0))
    numbers, _ = read()
    assert [*numbers["step/loss"]] == [0, 1, 2, 3, 4, 5]
    assert numbers["step/loss"][5] == 99.0


def test_tensorboard_writes_nothing_for_a_run_that_does_not_start(tmp_path):
    with pytest.raises(KeyError), logging_to(tmp_path / "log"):
        raise KeyError
    assert not (tmp_path / "log").exists()


# --- numbers that are not finite


def test_a_loss_that_is_nan_stops_before_the_weights_change(batches):
    x, y = batches[1]
    broken = [batches[0], (torch.full_like(x, math.nan), y), batches[2]]
    model = linear()
    weights = []
    with pytest.raises(NonFiniteError) as caught:
        train(broken, model, observers=[lambda record: weights.append(model.weight.detach().clone())])
    assert caught.value.what == "The loss of step 1 is nan."
    assert caught.value.got == "nan in epoch 0, batch 1"
    assert "clean the data" in caught.value.fix
    assert torch.equal(model.weight, weights[-1])


def test_a_loss_that_is_inf_by_the_loss_function_says_so(batches):
    model = linear()
    with pytest.raises(NonFiniteError, match="inputs and weights are finite"):
        fit(model, lambda logits, labels: (logits * 0).sum().log().neg(), sgd(model), batches)


def test_weights_that_were_broken_before_are_named(batches):
    model = linear()
    with torch.no_grad():
        model.bias[0] = math.inf
    with pytest.raises(NonFiniteError, match="first 'bias': lower the learning rate"):
        train(batches, model)


def test_a_gradient_that_is_inf_is_seen_where_its_norm_is_read(batches):
    model = linear()
    infinite = lambda logits, labels: (logits.sum() * 0 + 1e-20).sqrt() * 1e30 + (logits.sum() * 0).abs().sqrt()  # noqa: E731
    with pytest.raises(NonFiniteError, match="The gradient norm of step 0 is nan"):
        fit(model, infinite, sgd(model), batches, clip_norm=1.0)


def test_on_a_gpu_losses_are_read_late_and_all_of_them(batches, monkeypatch):
    """A name stands in for a GPU where the loop decides; the arithmetic stays on the CPU."""
    reads = []
    monkeypatch.setattr(training, "READ_EVERY", 3)
    monkeypatch.setattr(training, "device_of", lambda model: FakeGpu())
    monkeypatch.setattr(training, "to_device", lambda batch, device: batch)
    read = training.Recorder.read
    monkeypatch.setattr(training.Recorder, "read", lambda facts: reads.append(facts.n_unread) or read(facts))
    _, late = train(batches, epochs=2, clip_norm=0.5)
    assert [count for count in reads if count] == [3, 1, 3, 1]
    monkeypatch.undo()
    assert late == train(batches, epochs=2, clip_norm=0.5)[1]


def test_on_a_gpu_a_nan_is_found_late_and_its_step_is_named(batches, monkeypatch):
    x, y = batches[0]
    monkeypatch.setattr(training, "device_of", lambda model: FakeGpu())
    monkeypatch.setattr(training, "to_device", lambda batch, device: batch)
    with pytest.raises(NonFiniteError) as caught:
        train([*batches, (x * math.nan, y), *batches])
    assert caught.value.what == "The loss of step 4 is nan."
    assert "pass an observer" in caught.value.fix


class FakeGpu:
    type = "cuda"


# --- arguments


def one_shot(batches):
    yield from batches


def other_optimizer():
    return sgd(linear())


ERRORS = {
    "no epochs": (lambda b: train(b, epochs=0), UsageError, "This is not a value for epochs."),
    "half an epoch": (lambda b: train(b, epochs=0.5), UsageError, "This is not a value for epochs."),
    "true epochs": (lambda b: train(b, epochs=True), UsageError, "This is not a value for epochs."),
    "no steps": (lambda b: train(b, max_steps=0), UsageError, "This is not a value for max_steps."),
    "no accumulation": (lambda b: train(b, accumulate=0), UsageError, "This is not a value for accumulate."),
    "no length": (lambda b: train(b, clip_norm=0.0), UsageError, "This is not a value for clip_norm."),
    "nan length": (lambda b: train(b, clip_norm=math.nan), UsageError, "This is not a value for clip_norm."),
    "no patience": (lambda b: KeepBest(patience=0), UsageError, "This is not a value for patience."),
    "no direction": (lambda b: KeepBest("best"), UsageError, "KeepBest must know which way is better."),
    "another model's optimizer": (
        lambda b: train(b, optimizer=other_optimizer()),
        UsageError,
        "The optimizer would not change this model.",
    ),
    "a frozen model": (
        lambda b: train(b, linear().requires_grad_(False)),
        UsageError,
        "The optimizer would not change this model.",
    ),
    "another optimizer's step schedule": (
        lambda b: train(b, step_schedule=schedules.StepLR(other_optimizer(), 1)),
        UsageError,
        "The step_schedule moves the learning rate of another optimizer.",
    ),
    "another optimizer's epoch schedule": (
        lambda b: train(b, epoch_schedule=schedules.StepLR(other_optimizer(), 1)),
        UsageError,
        "The epoch_schedule moves the learning rate of another optimizer.",
    ),
    "plateau per step": (lambda b: plateau_per_step(b), UsageError, "ReduceLROnPlateau can't be stepped .*"),
    "two directions": (lambda b: two_directions(b), UsageError, "The plateau schedule and KeepBest .* disagree .*"),
    "an unknown metric": (lambda b: train(b, monitor="acuracy"), UsageError, "There is no number called 'acuracy' .*"),
    "a metric without validation": (
        lambda b: train(b, monitor="accuracy", metrics={"accuracy": accuracy}),
        UsageError,
        "There is no number called 'accuracy' to monitor.",
    ),
    "a generator for two epochs": (
        lambda b: train(one_shot(b), epochs=2),
        UsageError,
        "These batches can be passed over only once.",
    ),
    "no batches": (lambda b: train([]), DataError, "Epoch 0 has no batches."),
    "no batches later": (lambda b: train(lambda epoch: b[epoch * 4 :], epochs=2), DataError, "Epoch 1 has no batches."),
    "no validation": (lambda b: train(b, validation=[]), DataError, "There is nothing to evaluate on."),
    "inputs only": (lambda b: train([x for x, _ in b]), DataError, "A batch must be a pair of inputs and labels."),
    "triples": (lambda b: train([(1, 2, 3)]), DataError, "A batch must be a pair of inputs and labels."),
    "batches without tensors": (lambda b: train([("a", "b")]), DataError, "This batch doesn't say how many .*"),
    "a loss per example": (
        lambda b: with_loss(b, lambda z, y: F.cross_entropy(z, y, reduction="none")),
        UsageError,
        "A step needs one loss that knows how it was computed.",
    ),
    "a number as loss": (lambda b: with_loss(b, lambda z, y: 1.0), UsageError, "A step needs one loss .*"),
    "a loss that was cut off": (
        lambda b: with_loss(b, lambda z, y: F.cross_entropy(z.detach(), y)),
        UsageError,
        "A step needs one loss .*",
    ),
}


def plateau_per_step(batches):
    model = linear()
    optimizer = sgd(model)
    train(batches, model, optimizer=optimizer, step_schedule=schedules.ReduceLROnPlateau(optimizer))


def two_directions(batches):
    model = linear()
    optimizer = sgd(model)
    plateau = schedules.ReduceLROnPlateau(optimizer, mode="max")
    train(batches, model, optimizer=optimizer, epoch_schedule=plateau, best=KeepBest("min"))


def with_loss(batches, loss_fn):
    model = linear()
    fit(model, loss_fn, sgd(model), batches)


@pytest.mark.parametrize(("wrong", "kind", "what"), ERRORS.values(), ids=ERRORS.keys())
def test_each_error_says_what_is_wrong_and_what_to_do(batches, wrong, kind, what):
    with pytest.raises(CourseError) as caught:
        wrong(batches)
    assert type(caught.value) is kind
    assert re.fullmatch(what, caught.value.what)
    assert caught.value.got
    assert caught.value.expected
    assert caught.value.fix


def test_an_optimizer_of_a_part_or_with_more_is_fine(batches):
    model = nn.Sequential(nn.Linear(D, C), nn.Linear(C, C))
    train(batches, model, optimizer=sgd(model[1]))
    extra = nn.Parameter(torch.zeros(()))
    train(batches, model, optimizer=torch.optim.SGD([*model.parameters(), extra], lr=0.1))
