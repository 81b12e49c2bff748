"""One network trained by several training loops, in turns, in one process: ``python -m benchmarks.loops ROUNDS``.

Every loop gets the same first weights, the same examples in the same order and the same optimizer. Their extras are
off (progress bars, loggers, checkpoints) where they can be. Prints JSON: for each kind of batches and each loop the
milliseconds per step of each round, and whether its final weights are those of the bare loop, bit for bit. The time is
that of the thread which trains: on one thread it is the wall time, without that of other programs.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from course_utils.training import fit

BATCH, STEPS, EPOCHS = 64, 64, 2  # steps in an epoch
Train = Callable[[nn.Module, torch.optim.Optimizer, Any], None]


def network() -> nn.Sequential:
    """Return the network 64-256-256-10, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def loader() -> DataLoader:
    """Return the examples in batches; the order depends on the sampler's generator and nothing else."""
    generator = torch.Generator().manual_seed(1)
    count = BATCH * STEPS
    data = TensorDataset(torch.randn(count, 64, generator=generator), torch.randint(10, (count,), generator=generator))
    return DataLoader(data, batch_size=BATCH, sampler=RandomSampler(data, generator=generator))


class Ready:
    """Batches that are made already, so that nothing but the steps takes time. Lightning takes a list for loaders."""

    def __init__(self) -> None:
        self.batches = [(x, y) for x, y in loader()]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.batches)


def bare(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Train as a book does it. It never looks at the loss."""
    loss_fn = nn.CrossEntropyLoss()
    model.train()
    for _ in range(EPOCHS):
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()


def ours(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Train with the course's loop."""
    fit(model, nn.CrossEntropyLoss(), optimizer, batches, epochs=EPOCHS)


def lightning_loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
    """Train with a Trainer of Lightning."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.loss_fn = model, nn.CrossEntropyLoss()

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch
            return self.loss_fn(self.model(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", devices=1, **off)
    trainer.fit(Module(), batches)


def skorch_loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
    """Train with a NeuralNet of skorch, which makes its own optimizer."""
    from skorch import NeuralNet

    kind, settings = type(optimizer), optimizer.defaults
    net = NeuralNet(
        model,
        nn.CrossEntropyLoss,
        optimizer=lambda parameters, **_: kind(parameters, **settings),
        max_epochs=EPOCHS,
        train_split=None,
        iterator_train=lambda dataset, **_: batches,
        verbose=0,
    )
    whole = getattr(batches, "dataset", None)
    x, y = whole.tensors if whole is not None else (torch.zeros(1, 64), torch.zeros(1, dtype=torch.int64))
    net.fit(x, y)


def accelerate_loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
    """Train with the loop of Accelerate's first page."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    loss_fn = nn.CrossEntropyLoss()
    model.train()
    for _ in range(EPOCHS):
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            accelerator.backward(loss)
            optimizer.step()


LOOPS: dict[str, Train] = {"bare loop": bare, "fit": ours}
PEERS: dict[str, tuple[str, Train]] = {  # the package that must be there
    "Lightning": ("lightning", lightning_loop),
    "skorch": ("skorch", skorch_loop),
    "Accelerate": ("accelerate", accelerate_loop),
}
BATCHES: dict[str, Callable[[], Any]] = {"DataLoader": loader, "ready batches": Ready}


def timed(train: Train, make_batches: Callable[[], Any]) -> tuple[float, nn.Module]:
    """Train once from the start; return milliseconds per step, and the model."""
    model, batches = network(), make_batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    before = time.thread_time()
    train(model, optimizer, batches)
    return (time.thread_time() - before) / (EPOCHS * STEPS) * 1e3, model


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    """Return whether two models have the same parameters, bit for bit."""
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def measure(rounds: int) -> dict[str, Any]:
    """Return what the module's text says. Each round runs all loops, every other round the other way round."""
    loops = LOOPS | {name: train for name, (package, train) in PEERS.items() if importlib.util.find_spec(package)}
    results: dict[str, Any] = {}
    for kind, make_batches in BATCHES.items():
        reference = timed(bare, make_batches)[1]
        equal = {name: same_weights(timed(train, make_batches)[1], reference) for name, train in loops.items()}  # warms
        times: dict[str, list[float]] = {name: [] for name in loops}
        for number in range(rounds):
            for name in list(loops) if number % 2 else list(loops)[::-1]:
                times[name].append(timed(loops[name], make_batches)[0])
        results[kind] = {"ms": times, "equal": equal}
    return results


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with redirect_stdout(sys.stderr):
        results = measure(int(sys.argv[1]))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
