"""What lesson 07 says about DDP, with real processes: each sentence as a measurement."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F

from course_utils import ranks
from course_utils.data import load_digits8
from course_utils.distributed import cool_down, launch, warm_up


@pytest.fixture(scope="module", autouse=True)
def helper():
    warm_up()
    launch(ranks.hello, 1)  # waits until the helper has loaded PyTorch: time limits below are short
    yield
    cool_down()


@pytest.fixture(scope="module")
def batch():
    x, y = load_digits8().train.as_batch()
    return x[:64].clone(), y[:64].clone()


def whole_gradients(batch, normed=False):
    model = ranks.small_net(normed=normed)
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    return ranks.gradients_of(model)


@pytest.mark.parametrize(("parts", "sync", "sent"), [(1, "each", 1), (4, "each", 4), (4, "last", 1)])
def test_gradients_of_two_processes_are_those_of_one(batch, parts, sync, sent):
    expected = whole_gradients(batch)
    for found in launch(ranks.gradients, 2, x=batch[0], y=batch[1], n_parts=parts, sync=sync):
        assert (found["gradients"] - expected).abs().max() < 1e-6
        assert found["sent"] == sent


def test_batchnorm_makes_another_gradient_and_other_statistics(batch):
    expected = whole_gradients(batch, normed=True)
    found = launch(ranks.gradients, 2, x=batch[0], y=batch[1], normed=True)
    assert (found[0]["gradients"] - expected).abs().max() > 1e-3 * expected.abs().max()
    assert torch.equal(found[0]["gradients"], found[1]["gradients"])
    assert not torch.allclose(found[0]["running_mean"], found[1]["running_mean"])


@pytest.mark.parametrize(
    ("kind", "agree"), [("no DDP", False), ("DDP, .module called", False), ("DDP, same data", True), ("DDP", True)]
)
def test_only_ddp_keeps_ranks_together(batch, kind, agree):
    (first, _), (second, _) = launch(ranks.train, 2, kind=kind, x=batch[0], y=batch[1], batch=16, steps=4)
    assert torch.allclose(first, second, atol=1e-6) == agree


@pytest.mark.parametrize("n", [2, 3])
def test_the_ring_agrees_with_the_library(n):
    for difference, same in launch(ranks.compare_ring, n, length=101):
        assert difference < 1e-12
        assert same


def test_a_ring_can_be_tried_from_its_source():
    source = inspect.getsource(ranks.ring_all_reduce).replace("Tensor", "torch.Tensor").replace(": Any", "")
    assert launch(ranks.run_source, 3, source=source, name="ring_all_reduce") == [[True, True]] * 3
    half = "def half(tensor, dist):\n    pass\n"
    assert launch(ranks.run_source, 2, source=half, name="half") == [[False, False]] * 2


def test_sending_first_hangs_and_sending_beside_does_not():
    assert launch(ranks.pass_right, 3, send_first=True, patience_s=3.0) == [None] * 3
    assert launch(ranks.pass_right, 3, send_first=False, patience_s=20.0) == [2.0, 0.0, 1.0]


def test_collectives():
    for rank, found in enumerate(launch(ranks.collectives, 3)):
        assert found["before"] == [rank + 1, 10 * (rank + 1)]
        assert found["all_reduce, sum"] == [6, 60]
        assert found["broadcast from 0"] == [1, 10]


def test_the_first_bucket_leaves_before_backward_ends():
    first, second = launch(ranks.watch_backward, 2, n_layers=6, width=200, cap_mb=0.3, steps=2)[0]
    assert first[-1] == ("bucket", "0 1 2 3 4 5")
    assert [layers for kind, layers in second if kind == "bucket"] == ["5 4", "3 2", "1 0"]
    assert second.index(("bucket", "5 4")) < second.index(("gradient", "3"))


def test_ddp_makes_weights_equal_and_leaves_noise_alone():
    first, second = launch(ranks.start, 2)
    assert len(first) == 4
    for seed, wrapper in first:
        (weights, noise), (weights_1, noise_1) = first[seed, wrapper], second[seed, wrapper]
        assert torch.equal(weights, weights_1) == (seed == "same seed" or wrapper == "DDP")
        assert torch.equal(noise, noise_1) == (seed == "same seed")


def test_sync_batch_norm_is_refused_on_the_cpu():
    kind, error = launch(ranks.wrap_synced, 2)[0]
    assert kind == "SyncBatchNorm"
    assert "GPU" in error


def test_an_unused_parameter_is_noticed_in_the_second_step():
    assert launch(ranks.unused_parameter, 2, find=False)[0].startswith("step 2: Expected to have finished reduction")
    assert launch(ranks.unused_parameter, 2, find=True) == ["", ""]


def test_uneven_batches_need_join():
    assert launch(ranks.uneven, 2, joined=True) == [(3, "finished"), (4, "finished")]
    assert launch(ranks.uneven, 2, joined=False)[1] == (3, "RuntimeError")


def test_a_swapped_order_gives_wrong_sums_and_no_error():
    found = launch(ranks.mismatched, 3, kind="order", patience_s=10.0)
    assert [answer["error"] for answer in found] == ["", "", ""]
    assert found[0]["results"][1] == (3.0, 16.5)
    assert found[1]["log"][2:4] == ["count (1,)", "loss (1,)"]


def test_a_missing_collective_hangs_and_the_log_tells_who():
    found = launch(ranks.mismatched, 3, kind="missing", patience_s=1.0)
    assert found[0]["error"]
    lines = [answer["log"][3] for answer in found]
    assert lines == ["count (1,)", "loss (1,)", "count (1,)"]


def test_a_monitored_barrier_names_the_missing_rank():
    assert "Ranks 1 failed" in launch(ranks.monitored, 3, patience_s=0.5)[0]


def test_times_are_measured():
    times = launch(ranks.all_reduce_seconds, 2, sizes_bytes=[4_000, 40_000], seconds=0.02)[0]
    assert len(times) == 2
    assert min(times) > 0
    found = launch(ranks.step_seconds, 2, caps_mb=[0.1, 5], n_layers=2, width=64, batch=8, steps=3)[0]
    assert found["alone"] > 0
    assert len(found["caps"]) == 2
    assert all(rate > 0 for rate in launch(ranks.throughput, 2, batch=8, width=16, seconds=0.1))
