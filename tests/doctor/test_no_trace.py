"""What an examination leaves behind: nothing, bit for bit, of anything the reader's code can reach."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.optim import lr_scheduler
from torch.optim import optimizer as optimizer_hooks
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset, WeightedRandomSampler

from course_utils import doctor

pytestmark = pytest.mark.filterwarnings("ignore")


class Noisy(Dataset):
    """Examples with noise from generators of its own, and a counter of readings."""

    def __init__(self) -> None:
        self.rows = torch.arange(96.0).reshape(24, 4) / 96
        self.numpy, self.old, self.python = np.random.default_rng(3), np.random.RandomState(3), random.Random(3)
        self.readings, self.cache = 0, {}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.readings += 1
        noise = self.numpy.normal() + self.old.normal() + self.python.random() + np.random.normal() + random.random()
        self.cache[index] = noise
        return self.rows[index] + noise + torch.randn(4), self.rows[index].sum().reshape(1)


class Net(nn.Module):
    """Has statistics, dropout, a state, a counter, a frozen layer and a shared one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.drop = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)
        self.frozen, self.head = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 1)
        self.calls, self.last = 0, None
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += len(x)
        h = self.drop(torch.relu(self.norm(self.body(x))))
        self.last = h.detach()
        return self.head(h + self.frozen(h))


def patient() -> dict[str, Any]:
    """Return a set-up in the middle of a training, with everything that may be disturbed."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    data = Noisy()
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(5))
    weighted = WeightedRandomSampler(torch.rand(24), 24, generator=torch.Generator().manual_seed(6))
    loader = DataLoader(data, 8, sampler=sampler)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=500)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    log: list[float] = []
    recent: deque[float] = deque(maxlen=3)
    average = [p.detach().clone() for p in model.parameters()]
    model.head.register_forward_hook(lambda module, inputs, output: log.append(1.0))

    def step(model: Net, batch: Any, loss_fn: Any, optimizer: Any) -> Tensor:
        torch.set_num_threads(2)  # a step that changes switches of the process, too
        torch.set_default_dtype(torch.float64 if model.calls % 2 else torch.float32)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0].float()), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        log.append(loss.item())
        recent.append(loss.item())
        model.drop.p = 0.3
        for kept, p in zip(average, model.parameters(), strict=True):
            kept.lerp_(p.detach(), 0.1)
        next(iter(weighted))
        return loss

    def train(model: Net, loader: Any, loss_fn: Any, optimizer: Any, epochs: int = 2) -> None:
        model.train()
        for _ in range(epochs):
            for batch in loader:
                step(model, batch, loss_fn, optimizer)
            model.norm.eval()
            model.head.register_forward_hook(lambda module, inputs, output: None)

    def evaluate(model: Net) -> float:
        model.eval()
        torch.set_grad_enabled(False)
        return float(sum((model(x.float()) - y).abs().sum() for x, y in loader))

    val_loader = DataLoader(TensorDataset(data.rows, data.rows[:, :1]), 5)
    parts = {
        "model": model, "loader": loader, "loss_fn": nn.MSELoss(), "optimizer": optimizer, "step": step,
        "train": train, "evaluate": evaluate, "scheduler": scheduler, "scaler": scaler, "sampler": sampler,
        "weighted": weighted, "log": log, "recent": recent, "average": average, "val_loader": val_loader,
    }  # fmt: skip
    switches = _switches()
    for batch in loader:  # one epoch, so that there are moments, statistics and gradients
        step(model, batch, parts["loss_fn"], optimizer)
    _switch_back(switches)
    model.norm.eval()
    model.head.bias.grad = None
    return parts


def _switches() -> list[Any]:
    return [
        torch.get_num_threads(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(), torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(), torch.is_grad_enabled(), torch.get_float32_matmul_precision(),
        torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled(),
    ]  # fmt: skip


def _switch_back(switches: list[Any]) -> None:
    torch.set_num_threads(switches[0])
    torch.set_default_dtype(switches[1])
    torch.use_deterministic_algorithms(switches[2], warn_only=switches[3])
    torch.autograd.set_detect_anomaly(switches[4], check_nan=switches[5])
    torch.set_float32_matmul_precision(switches[7])


def _bytes(value: Any) -> Any:
    """Return a value with its tensors and arrays as bytes, for an exact comparison."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: _bytes(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [_bytes(item) for item in value]
    return value


def _functions() -> list[Any]:
    """Return what the doctor replaces or hooks while it observes."""
    schedulers = [vars(kind).get("step") for kind in (lr_scheduler.LRScheduler, lr_scheduler.SequentialLR)]
    hooks = [dict(value) for name, value in sorted(vars(module_hooks).items()) if name.startswith("_global_")
             and isinstance(value, dict)]  # fmt: skip
    return [
        torch.autograd.backward, nn.Module.__init__, nn.Module.train, nn.Module.zero_grad, nn.Module.state_dict,
        torch.optim.Optimizer.zero_grad, DataLoader.__iter__, torch.amp.GradScaler.step, torch.amp.GradScaler.scale,
        torch.nn.functional.dropout, torch.nn.utils.clip_grad_value_, *schedulers, *hooks,
        dict(optimizer_hooks._global_optimizer_pre_hooks), dict(optimizer_hooks._global_optimizer_post_hooks),
    ]  # fmt: skip


def state_of(parts: dict[str, Any]) -> dict[str, Any]:
    """Return everything that must be as it was."""
    model, loader, optimizer = parts["model"], parts["loader"], parts["optimizer"]
    data = loader.dataset
    return {
        "weights": _bytes(dict(model.state_dict())),
        "gradients": _bytes([p.grad for p in model.parameters()]),
        "gradient objects": [id(p.grad) for p in model.parameters()],
        "parameter objects": [id(p) for p in model.parameters()],
        "flags": [p.requires_grad for p in model.parameters()],
        "versions": [p._version for p in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "attributes": (model.calls, _bytes(model.last), model.drop.p, id(model.last)),
        "hooks": [list(module._forward_hooks.values()) for module in model.modules()],
        "optimizer": _bytes(optimizer.state_dict()),
        "scheduler": _bytes({k: v for k, v in parts["scheduler"].state_dict().items() if k != "_anneal_func"}),
        "scaler": _bytes(parts["scaler"].state_dict()),
        "generators": [_bytes(parts[name].generator.get_state()) for name in ("sampler", "weighted")],
        "data set": (data.readings, dict(data.cache), _bytes(data.rows)),
        "data set's generators": [
            _bytes(list(data.old.get_state())), data.python.getstate(), data.numpy.bit_generator.state,
        ],
        "loader": (loader.num_workers, loader.batch_size, id(loader.sampler), id(loader.batch_sampler)),
        "lists": (list(parts["log"]), list(parts["recent"]), _bytes(parts["average"])),
        "random numbers": (_bytes(torch.get_rng_state()), random.getstate(), _bytes(list(np.random.get_state()))),
        "switches": _switches(),
        "functions": _functions(),
    }  # fmt: skip


@pytest.fixture
def restored() -> Iterator[None]:
    before = _switches()
    yield
    _switch_back(before)
    torch.set_grad_enabled(before[6])


def _break(parts: dict[str, Any], error: BaseException) -> None:
    """Let the fourth step raise."""
    good, count = parts["step"], [0]

    def step(model: Any, batch: Any, loss_fn: Any, optimizer: Any) -> Any:
        count[0] += 1
        loss = good(model, batch, loss_fn, optimizer)
        if count[0] % 4 == 0:
            raise error
        return loss

    parts["step"] = step


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: None,
        lambda parts: parts.pop("train"),
        lambda parts: _break(parts, ValueError("no")),
        lambda parts: _break(parts, torch.OutOfMemoryError("CUDA out of memory.")),
        lambda parts: parts.update(limit_s=0.2),
    ],
    ids=["whole", "steps alone", "a step that raises", "no memory", "no time"],
)
def test_everything_is_as_it_was_bit_for_bit(restored: None, change: Callable[[dict[str, Any]], Any]):
    parts = patient()
    change(parts)
    before = state_of(parts)
    report = doctor.examine(**parts)
    after = state_of(parts)
    different = [name for name, value in before.items() if value != after[name]]
    assert different == [], report
    assert not any("could not look" in remark for remark in report.remarks), report


def test_a_training_goes_on_as_if_nobody_had_looked(restored: None):
    def goes_on(is_examined: bool) -> Any:
        parts = patient()
        if is_examined:
            doctor.examine(**parts)
        order = _bytes(next(iter(parts["loader"])))
        parts["train"](parts["model"], parts["loader"], parts["loss_fn"], parts["optimizer"])
        return order, _bytes(dict(parts["model"].state_dict())), list(parts["log"])

    assert goes_on(True) == goes_on(False)
