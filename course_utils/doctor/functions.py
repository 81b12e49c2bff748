"""Observe the functions of PyTorch that the reader's code calls: losses, dropout, arithmetic that broadcasts."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from course_utils.doctor.where import reader_line

# Losses that compare element by element, so that both sides must have one shape.
ELEMENTWISE_LOSSES = {
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "poisson_nll_loss", "soft_margin_loss",
}  # fmt: skip
CLASS_LOSSES = {"cross_entropy", "nll_loss"}
SIGN_LOSSES = {"cosine_embedding_loss": 2, "margin_ranking_loss": 2, "hinge_embedding_loss": 1, "soft_margin_loss": 1}
LOSSES = ELEMENTWISE_LOSSES | CLASS_LOSSES | set(SIGN_LOSSES) | {"kl_div", "gaussian_nll_loss", "multi_margin_loss"}
ARITHMETIC = {
    "add", "sub", "rsub", "mul", "div", "true_divide", "subtract", "multiply", "pow", "maximum", "minimum", "where",
    "__add__", "__sub__", "__rsub__", "__mul__", "__truediv__", "__radd__", "__rmul__", "eq", "ne", "__eq__", "__ne__",
    "lt", "gt", "le", "ge", "__lt__", "__gt__", "__le__", "__ge__", "logical_and",
}  # fmt: skip
COMPARISONS = {"eq", "ne", "__eq__", "__ne__"}
JUDGING = LOSSES | COMPARISONS | {"argmax"}
DROPOUTS = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "_dropout",
}  # fmt: skip
RANDOM = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli",
    "multinomial", "normal_", "uniform_", "bernoulli_", "exponential_", "poisson", "gumbel_softmax", "rrelu",
}  # fmt: skip
ADDS_AXIS = {"unsqueeze", "__getitem__", "unsqueeze_", "expand", "broadcast_to"}
OVER_AXIS = {"softmax", "log_softmax", "argmax", "_softmax"}
WRITES = {
    "add_": torch.add,
    "sub_": torch.sub,
    "mul_": torch.mul,
    "div_": torch.div,
}  # what `x += y` calls, and its plain form


@dataclass(frozen=True)
class LossCall:
    """One call of a loss function of PyTorch, with the numbers that a rule needs.

    Args:
        name: of the function, ``mse_loss``.
        shape: of the prediction.
        label_shape: of the label.
        least: smallest prediction.
        most: largest prediction.
        row_sum_error: for predictions with classes on axis 1, how far the sums over it are from 1 at most.
        row_exp_sum_error: the same for the sums of the exponentials.
        made_by: name of the graph node that made the prediction, views aside; empty without a graph.
        label_least: smallest label.
        label_most: largest label.
        label_values: the distinct labels, if there are at most five.
        label_row_sum_error: as row_sum_error, for the labels.
        label_is_floating: whether labels are floating-point numbers.
        last_axis_is_features: whether the prediction is, unmoved, what a linear layer returned, with classes last.
        requires_grad: whether the prediction hangs in a graph.
        reduction: of the call.
        where: line of the reader.
    """

    name: str
    shape: tuple[int, ...]
    label_shape: tuple[int, ...]
    least: float
    most: float
    row_sum_error: float
    row_exp_sum_error: float
    made_by: str
    label_least: float
    label_most: float
    label_values: tuple[float, ...]
    label_row_sum_error: float
    label_is_floating: bool
    last_axis_is_features: bool
    requires_grad: bool
    reduction: str
    where: str
    options: dict[str, Any] = field(default_factory=dict)
    label_sample: tuple[float, ...] = ()

    def label_outside(self, low: float, high: float) -> float:
        """Return the share of labels that lie clearly outside of a range, 0..1."""
        margin = 0.05 * (high - low) if high < float("inf") and low > -float("inf") else 0.05
        outside = [value < low - margin or value > high + margin for value in self.label_sample]
        return sum(outside) / len(outside) if outside else 0.0


@dataclass(frozen=True)
class Broadcast:
    """Arithmetic between an (N, 1) and an (N,) tensor that made an (N, N) one."""

    name: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    result: tuple[int, ...]
    by_hand: bool  # an axis was added on purpose just before
    where: str


@dataclass(frozen=True)
class Reduction:
    """A softmax or argmax, with the axis that it ran over."""

    name: str
    axis: int
    shape: tuple[int, ...]
    where: str


@dataclass
class Calls:
    """What a FunctionObserver saw."""

    losses: list[LossCall] = field(default_factory=list)
    broadcasts: list[Broadcast] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    dropouts: list[tuple[bool, str]] = field(default_factory=list)  # training flag, line
    random: list[tuple[str, str]] = field(default_factory=list)  # name, line
    logs: list[tuple[str, str]] = field(default_factory=list)  # node that made the argument, line
    counts: dict[str, int] = field(default_factory=dict)


class FunctionObserver(TorchFunctionMode):
    """Sees every function of PyTorch that is called inside the block, and changes none."""

    def __init__(self, calls: Calls, on_call: Callable[[tuple[Any, ...]], None] | None = None):
        super().__init__()
        self.calls = calls
        self.on_call = on_call  # given the arguments of every function
        self.on_judged: Callable[[], None] | None = None  # called for a loss or comparison without gradients
        self.is_active = True
        self._given_axis: dict[int, weakref.ref[Tensor]] = {}  # tensors whose axis was added on purpose
        self._linear: dict[int, weakref.ref[Tensor]] = {}  # what linear layers returned

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.on_judged is not None and name in JUDGING and not torch.is_grad_enabled():
            self.on_judged()
        if not self.is_active:
            return func(*args, **kwargs)
        if name in LOSSES:
            self._before_loss(name, args, kwargs)
        elif name in DROPOUTS:
            training = kwargs.get("training", args[2] if len(args) > 2 else True)
            p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            if p and torch.is_tensor(args[0]):
                self.calls.dropouts.append((bool(training), reader_line()))
        elif name in RANDOM:
            self.calls.random.append((name, reader_line()))
        elif name in ("log", "log_", "log2", "log10") and args and isinstance(args[0], Tensor):
            self.calls.logs.append((made_by(args[0]), reader_line()))
        losses = len(self.calls.losses)
        try:
            result = func(*args, **kwargs)
        except Exception:
            del self.calls.losses[losses - (name in LOSSES) :]  # it compared nothing
            raise
        if isinstance(result, Tensor):
            if name in ADDS_AXIS:
                self._given_axis[id(result)] = weakref.ref(result)
            elif name == "linear":
                self._linear[id(result)] = weakref.ref(result)
            elif name in ARITHMETIC:
                self._after_arithmetic(name, args, result)
            elif name in OVER_AXIS:
                self._after_reduction(name, args, kwargs)
        if self.on_call is not None:
            self.on_call(args)
        return result

    def _before_loss(self, name: str, args: Any, kwargs: Any) -> None:
        values = list(args)
        prediction = values[0] if values else kwargs.get("input")
        place = SIGN_LOSSES.get(name, 1)
        label = values[place] if len(values) > place else kwargs.get("target")
        if isinstance(prediction, Tensor) and isinstance(label, Tensor) and prediction.numel() and label.numel():
            linear = self._linear.get(id(prediction))
            unmoved = linear is not None and linear() is prediction
            self.calls.losses.append(_loss_call(name, prediction, label, kwargs, unmoved))

    def _after_arithmetic(self, name: str, args: Any, result: Tensor) -> None:
        pair = [value for value in args if isinstance(value, Tensor)][:2]
        if len(pair) < 2 or not crosses_batch(pair[0].shape, pair[1].shape):
            return
        marks = [self._given_axis.get(id(value)) for value in pair]
        by_hand = any(mark is not None and mark() is value for mark, value in zip(marks, pair, strict=True))
        shapes = (tuple(pair[0].shape), tuple(pair[1].shape))
        self.calls.broadcasts.append(Broadcast(name, shapes, tuple(result.shape), by_hand, reader_line()))

    def _after_reduction(self, name: str, args: Any, kwargs: Any) -> None:
        value = args[0] if args else kwargs.get("input")
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if isinstance(value, Tensor) and isinstance(axis, int) and value.ndim:
            self.calls.reductions.append(Reduction(name, axis % value.ndim, tuple(value.shape), reader_line()))


def crosses_batch(first: torch.Size | tuple[int, ...], second: torch.Size | tuple[int, ...]) -> bool:
    """Tell whether shapes (N, 1) and (N,), in either order, meet and would make (N, N)."""
    first, second = tuple(first), tuple(second)
    if len(first) < len(second):
        first, second = second, first
    return len(first) == 2 and len(second) == 1 and first[1] == 1 and first[0] == second[0] and first[0] > 1


def made_by(value: Tensor, most: int = 6) -> str:
    """Return the name of the graph node that made a value, with views and moves between seen through."""
    node = value.grad_fn
    for _ in range(most):
        if node is None:
            return ""
        name = node.name()
        if not name.startswith((
            "View", "Squeeze", "Unsqueeze", "Reshape", "UnsafeView", "Transpose", "Permute", "TBackward", "Slice",
            "Select", "Clone", "ToCopy", "Alias", "Flatten", "Expand",
        )):  # fmt: skip
            return name
        node = node.next_functions[0][0] if node.next_functions else None
    return ""


def _loss_call(name: str, prediction: Tensor, label: Tensor, kwargs: Any, unmoved: bool) -> LossCall:
    with torch.no_grad():
        values = prediction.detach().float()
        labels = label.detach().double()
        distinct = torch.unique(labels)[:6].tolist()
        finite = values[torch.isfinite(values)]
        rows = values.ndim >= 2 and values.shape[1] > 1
        label_rows = labels.ndim >= 2 and labels.shape[1] > 1
        return LossCall(
            name=name,
            shape=tuple(prediction.shape),
            label_shape=tuple(label.shape),
            least=finite.min().item() if finite.numel() else 0.0,
            most=finite.max().item() if finite.numel() else 0.0,
            row_sum_error=(values.sum(1) - 1).abs().max().item() if rows else float("inf"),
            row_exp_sum_error=(values.exp().sum(1) - 1).abs().max().item() if rows else float("inf"),
            made_by=made_by(prediction),
            label_least=labels.min().item(),
            label_most=labels.max().item(),
            label_values=tuple(distinct) if len(distinct) <= 5 else (),
            label_row_sum_error=(labels.sum(1) - 1).abs().max().item() if label_rows else float("inf"),
            label_is_floating=label.is_floating_point(),
            last_axis_is_features=unmoved,
            requires_grad=prediction.requires_grad,
            reduction=str(kwargs.get("reduction", "mean")),
            where=reader_line(),
            label_sample=tuple(labels.reshape(-1)[:: max(1, labels.numel() // 256)][:256].tolist()),
            options={key: value for key, value in kwargs.items() if isinstance(value, (bool, int, float, str))},
        )
