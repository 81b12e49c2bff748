"""The reader's parts: what was given, how to call it, how to cut a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import DataLoader

from course_utils.errors import UsageError

LABEL_KEYS = ("labels", "label", "y", "target", "targets")
# What a function's argument may be called, where its name tells; else its place tells.
_NAMES = {
    "model": ("model", "net", "network", "module"),
    "loader": ("loader", "dataloader", "train_loader", "dl", "batches", "data_loader", "data"),
    "val_loader": ("val_loader", "valid_loader", "validation_loader", "test_loader", "val_dl"),
    "loss_fn": ("loss_fn", "criterion", "loss", "loss_function", "loss_func"),
    "optimizer": ("optimizer", "optim", "opt", "optimiser"),
    "scheduler": ("scheduler", "sched", "lr_scheduler"),
    "scaler": ("scaler", "grad_scaler"),
    "batch": ("batch",),
}
_EPOCHS = ("epochs", "n_epochs", "num_epochs", "epoch")
_STEPS = ("steps", "n_steps", "num_steps", "iterations", "max_steps")


@dataclass
class Parts:
    """What the reader handed to ``examine``; a part that was not given is None."""

    model: nn.Module | None = None
    loader: Any = None
    loss_fn: Callable[..., Any] | None = None
    optimizer: Any = None
    step: Callable[..., Any] | None = None
    train: Callable[..., Any] | None = None
    evaluate: Callable[..., Any] | None = None
    metric: Callable[..., Any] | None = None
    others: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("step", "train", "evaluate", "metric", "loss_fn"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise UsageError(
                    f"doctor.examine got a {name} that can't be called.", got=value, fix=f"pass {name} as a function."
                )
        if self.model is not None and not isinstance(self.model, nn.Module):
            raise UsageError(
                "doctor.examine got a model that is no nn.Module.",
                got=type(self.model).__name__,
                fix="put several networks into one nn.ModuleDict.",
            )

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that were given, each once."""
        given = [self.optimizer, *_several(self.others.get("optimizers"))]
        return _unique(item for item in given if isinstance(item, torch.optim.Optimizer))

    @property
    def schedulers(self) -> list[Any]:
        return _unique(_several(self.others.get("scheduler")) + _several(self.others.get("schedulers")))

    def get(self, name: str) -> Any:
        """Return a part by the name it was given under, or None."""
        return getattr(self, name) if name in self.__dataclass_fields__ and name != "others" else self.others.get(name)

    def call(self, function: Callable[..., Any], order: Sequence[str], **more: Any) -> Any:
        """Call a function of the reader with the parts that its arguments ask for.

        Args:
            function: the reader's own.
            order: parts by place, for arguments whose names don't tell.
            more: parts that stand in for the given ones, or further ones.

        Raises:
            UsageError: if an argument without a default can't be filled.
        """
        values, rest = self._arguments(function, order, more)
        return function(**values) if rest is None else function(*rest)

    def _arguments(
        self, function: Callable[..., Any], order: Sequence[str], more: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[Any] | None]:
        known = {name: self.get(name) for name in _NAMES}
        known |= {name: value for name, value in self.others.items() if name not in known}
        known |= more
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return {}, [known[name] for name in order]
        in_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if any(p.kind is p.POSITIONAL_ONLY for p in in_place) or any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return {}, [known[name] for name in order]
        values: dict[str, Any] = {}
        for place, parameter in enumerate(in_place):
            name = _part_named(parameter.name, known)
            if parameter.name in _EPOCHS and "epochs" in more:
                values[parameter.name] = more["epochs"]
            elif parameter.name in _STEPS:
                if "steps" in more:
                    values[parameter.name] = more["steps"]
            elif name is not None and known.get(name) is not None:
                values[parameter.name] = known[name]
            elif parameter.default is parameter.empty and name == "loss_fn":
                values[parameter.name] = None  # a step that makes its own loss names this argument and ignores it
            elif parameter.default is parameter.empty:
                if place >= len(order) or known.get(order[place]) is None:
                    raise UsageError(
                        f"The doctor can't fill the argument {parameter.name!r} of "
                        f"{getattr(function, '__name__', 'a function')}.",
                        fix=f"give it a default, or pass {parameter.name}=… to examine.",
                    )
                values[parameter.name] = known[order[place]]
        return values, None

    def split(self, batch: Any) -> tuple[Any, Any]:
        """Return inputs and labels of a batch; the labels of a batch without any are None."""
        if isinstance(batch, Mapping):
            for key in LABEL_KEYS:
                if key in batch:
                    return {name: value for name, value in batch.items() if name != key}, batch[key]
            return batch, None
        if isinstance(batch, (tuple, list)):
            if len(batch) == 2:
                return batch[0], batch[1]
            if len(batch) > 2:
                return tuple(batch[:-1]), batch[-1]
            return batch[0], None
        return batch, None

    def forward(self, inputs: Any) -> Any:
        """Run the model on the inputs of a batch, spread over its arguments where it takes several."""
        assert self.model is not None
        try:
            parameters = list(inspect.signature(self.model.forward).parameters.values())
        except (TypeError, ValueError):
            return self.model(inputs)
        required = [
            p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        spread = any(p.kind is p.VAR_POSITIONAL for p in parameters) or len(required) > 1
        if isinstance(inputs, tuple) and spread:
            return self.model(*inputs)
        names = {p.name for p in parameters}
        if (
            isinstance(inputs, Mapping)
            and inputs
            and set(inputs) <= names | ({*inputs} if _takes_any(parameters) else set())
        ) and not (len(required) == 1 and required[0].name not in inputs):
            return self.model(**inputs)
        return self.model(inputs)

    def loss_of(self, output: Any, labels: Any, batch: Any) -> Any:
        """Return the loss of an output as a standard step does."""
        if self.loss_fn is None:
            loss = getattr(output, "loss", None)
            return output if loss is None else loss
        return self.loss_fn(output) if labels is None and _required(self.loss_fn) == 1 else self.loss_fn(output, labels)

    def standard_step(self, batch: Any) -> Any:
        """The step that everybody writes: clear, forward, loss, backward, update. Returns the loss."""
        inputs, labels = self.split(batch)

        def closure() -> Any:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = self.loss_of(self.forward(inputs), labels, batch)
            loss.backward()
            return loss

        if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in self.optimizers):
            return self.optimizers[0].step(closure)
        loss = closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def run_step(self, batch: Any) -> Any:
        """Run the reader's step, or the standard one, on a batch; return what it returns."""
        if self.step is None:
            return self.standard_step(batch)
        return self.call(self.step, ("model", "batch", "loss_fn", "optimizer"), batch=batch)


def batch_size(batch: Any) -> int | None:
    """Return how many examples a batch holds: the first axis that most of its tensors share; None if unknown."""
    sizes = [leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim > 0]
    return max(set(sizes), key=sizes.count) if sizes else None


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors in a batch, an output, a loss."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def named_leaves(tree: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a batch with the path to each, such as ``batch[0]['x']``."""
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from named_leaves(value, f"{name}[{key!r}]")
    elif isinstance(tree, (tuple, list)):
        for index, value in enumerate(tree):
            yield from named_leaves(value, f"{name}[{index}]")


def clone_tree(tree: Any) -> Any:
    """Return a batch with its tensors copied."""
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, tree)


def take(tree: Any, index: Any, size: int) -> Any:
    """Return the examples ``index`` of every tensor whose first axis has ``size`` examples."""
    leaves, spec = tree_flatten(tree)
    picked = [
        leaf[index] if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] == size else leaf for leaf in leaves
    ]
    return tree_unflatten(picked, spec)


class LimitedLoader:
    """Yields at most ``most`` batches per pass of a loader; everything else is the loader's own."""

    def __init__(self, loader: Any, most: int) -> None:
        self._loader, self._most = loader, most
        self.was_cut = False

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._loader)
        for _ in range(self._most):
            try:
                yield next(iterator)
            except StopIteration:
                return
        self.was_cut = True

    def __len__(self) -> int:
        return min(self._most, len(self._loader))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)


def length_of(loader: Any) -> int | None:
    """Return how many batches a loader has, or None if it does not say."""
    if (
        isinstance(loader, DataLoader)
        and isinstance(loader.dataset, torch.utils.data.IterableDataset)
        and not hasattr(loader.dataset, "__len__")
    ):
        return None
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def is_one_shot(loader: Any) -> bool:
    """Tell whether going through the loader uses it up (a generator, an iterator)."""
    return isinstance(loader, Iterator)


def _part_named(name: str, known: Mapping[str, Any]) -> str | None:
    if name in known:
        return name
    return next((part for part, names in _NAMES.items() if name in names), None)


def _takes_any(parameters: Iterable[inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def _required(function: Callable[..., Any]) -> int | None:
    try:
        target = function.forward if isinstance(function, nn.Module) else function
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return None
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _several(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple, set)) else [value]


def _unique(values: Iterable[Any]) -> list[Any]:
    return list({id(value): value for value in values}.values())
