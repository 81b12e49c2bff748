"""Who owns the memory of a step: every storage from its birth to its death, with an owner.

Three views of a step come from one recording: what each owner had at most (`most`), who had what at the moment of
the peak (`at_peak`), and the bytes alive after each operator (`timeline`). Storages are counted, so a view costs
nothing and what two tensors share counts once. What a kernel takes for itself and gives back before it returns is
not seen, nor are arrays of NumPy.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # PyTorch's documented way to see every operator
from torch.utils._pytree import tree_leaves

from course_utils.errors import UsageError
from course_utils.text import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OWNERS = ("parameters", "gradients", "optimizer_state", "activations", "other")
OWNER_COLOURS = dict(zip(OWNERS, ("#0072b2", "#56b4e9", "#009e73", "#d55e00", "#bbbbbb"), strict=True))
FORWARD, BACKWARD, STEP = "forward", "backward", "step"
STATE_COPIES = {"SGD": 0, "SGD with momentum": 1, "Adam": 2}  # copies of the weights that each optimizer keeps


@dataclass(frozen=True)
class Ledger:
    """Bytes by owner.

    Args:
        parameters: what the model learns.
        gradients: the ``.grad`` of its parameters.
        optimizer_state: what the optimizer keeps for each parameter.
        activations: made in the step and saved by autograd for the backward pass.
        other: the rest: buffers, the batch, results that nobody saved, temporary tensors.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    activations: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, owner) for owner in OWNERS)

    def __str__(self) -> str:
        rows = [(owner.replace("_", " "), f"{getattr(self, owner):>12,}") for owner in OWNERS]
        return table([*rows, ("total", f"{self.total:>12,}")], ("owner", "       bytes"))


@dataclass
class Block:
    """One storage, its owner, and its life: alive after event ``born``, gone when event ``died`` ran (None: alive)."""

    size_bytes: int
    owner: str
    born: int
    died: int | None = None


@dataclass
class Recording:
    """All storages that were seen, and the phase of each event; an event is one operator, event 0 the start.

    Read it after the block: an owner may be known only later (a gradient is one once it stands in ``.grad``).
    """

    blocks: list[Block] = field(default_factory=list)
    phases: list[str] = field(default_factory=lambda: ["start"])

    @property
    def live_bytes(self) -> int:
        """Bytes of the storages that are alive now, those from before the block that were seen among them."""
        return sum(block.size_bytes for block in self.blocks if block.died is None)

    @property
    def live_count(self) -> int:
        """How many storages are alive now."""
        return sum(1 for block in self.blocks if block.died is None)

    def timeline(self, owner: str | None = None) -> list[int]:
        """Return the bytes alive when each event's operator returned, of one owner or of all together."""
        changes = [0] * (len(self.phases) + 1)
        for block in self.blocks:
            if owner in (None, block.owner):
                changes[block.born] += block.size_bytes
                if block.died is not None:
                    changes[block.died] -= block.size_bytes
        alive, line = 0, []
        for change in changes[:-1]:
            alive += change
            line.append(alive)
        return line

    @property
    def peak_event(self) -> int:
        """The event after which most bytes were alive, the first of equals."""
        line = self.timeline()
        return line.index(max(line))

    @property
    def peak_bytes(self) -> int:
        return max(self.timeline())

    def at(self, event: int) -> Ledger:
        """Return who owned what after one event; -1 is the last."""
        return Ledger(**{owner: self.timeline(owner)[event] for owner in OWNERS})

    def at_peak(self) -> Ledger:
        """Return who owned what when most bytes were alive; the total is the peak."""
        return self.at(self.peak_event)

    def after(self, phase: str) -> Ledger:
        """Return who owned what when a phase had ended and its temporary tensors were given back.

        Raises:
            UsageError: if the phase was not seen.
        """
        if phase not in self.phases:
            raise UsageError(
                f"This recording has no phase {phase!r}.", expected=f"one of {', '.join(dict.fromkeys(self.phases))}"
            )
        last = len(self.phases) - 1 - self.phases[::-1].index(phase)
        owned = dict.fromkeys(OWNERS, 0)
        for block in self.blocks:
            if block.born <= last and (block.died is None or block.died > last + 1):
                owned[block.owner] += block.size_bytes
        return Ledger(**owned)

    def most(self) -> Ledger:
        """Return the most that each owner had at any time; owners reach theirs at different times."""
        return Ledger(**{owner: max(self.timeline(owner)) for owner in OWNERS})


@contextmanager
def recording_memory(
    model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None
) -> Iterator[Recording]:
    """Record each storage that is made, used or given back in the block, with its owner.

    Args:
        model: its parameters and their gradients are known by name; its buffers count as ``other``.
        optimizer: its state is known, also what it makes in the block.

    What activation checkpointing computes a second time counts as ``other``: checkpointing puts its own hooks first.
    Hooks are put on for the block and taken off afterwards. One recording at a time.

    Example:
        >>> x = torch.zeros(1000)
        >>> with recording_memory() as memory:
        ...     y = x + 1
        ...     z = y.view(10, 100)
        >>> memory.live_bytes  # x was used, y was made, z is a view
        8000
    """
    recording = Recording()
    recorder = _Recorder(recording)
    parameters = list(model.parameters()) if model is not None else []
    for parameter in parameters:
        recorder.see(parameter, "parameters")
        if parameter.grad is not None:
            recorder.see(parameter.grad, "gradients")
    for buffer in model.buffers() if model is not None else ():
        recorder.see(buffer, "other")
    if optimizer is not None:
        recorder.see_all(optimizer.state.values(), "optimizer_state")
    with ExitStack() as attached:
        attached.callback(recorder.known.clear)  # what dies after the block is none of its business
        for parameter in parameters:
            if parameter.requires_grad:
                attached.callback(parameter.register_post_accumulate_grad_hook(recorder.note_gradient).remove)
        if optimizer is not None:
            attached.callback(optimizer.register_step_pre_hook(recorder.begin_step).remove)
            attached.callback(optimizer.register_step_post_hook(recorder.end_step).remove)
        attached.enter_context(torch.autograd.graph.saved_tensors_hooks(recorder.note_saved, lambda tensor: tensor))
        attached.enter_context(recorder)
        yield recording


def measure_step(
    model: nn.Module, step: Callable[[], object], optimizer: torch.optim.Optimizer | None = None, warm_up: int = 1
) -> Recording:
    """Run ``step`` and return the recording of its memory.

    Args:
        model: whose parameters and gradients are counted.
        step: runs one whole update, with whatever batch it likes.
        optimizer: whose state is counted.
        warm_up: steps to run before: an optimizer makes its state in its first step.
    """
    for _ in range(warm_up):
        step()
    with recording_memory(model, optimizer) as memory:
        step()
    return memory


def mlp_budget(
    batch_size: int,
    n_inputs: int,
    hidden: Sequence[int],
    n_classes: int = 10,
    optimizer: str = "Adam",
    is_mixed: bool = False,
) -> Ledger:
    """Return what a training step of `models.MLP` with cross entropy will hold, in bytes, by arithmetic alone.

    Parameters, gradients and state are those of a step in the middle of training, activations those at the end of
    the forward pass, and ``other`` is the batch.

    Args:
        batch_size: examples per step.
        n_inputs, hidden, n_classes: as for `models.MLP`, without dropout.
        optimizer: one of `STATE_COPIES`.
        is_mixed: forward pass and loss under autocast with a 2-byte format.
    """
    sizes = [n_inputs, *hidden, n_classes]
    matrices = [a * b for a, b in pairwise(sizes)]
    weights = 4 * (sum(matrices) + sum(sizes[1:]))
    state = STATE_COPIES[optimizer] * weights
    if optimizer == "Adam":
        state += 4 * 2 * len(matrices)  # each parameter counts its steps in a float32 of its own
    kept = (2 if is_mixed else 4) * batch_size * sum(hidden)  # each ReLU's output; the next layer shares it
    if is_mixed:
        kept += 2 * batch_size * n_inputs  # the batch in 2 bytes
        kept += 2 * sum(matrices[1:])  # weights in 2 bytes, to send gradients down; below the first layer nobody asks
    kept += 4 * batch_size * n_classes + 4  # log_softmax, and the weight by which the mean divides; always float32
    return Ledger(weights, weights, state, kept, 4 * batch_size * n_inputs + 8 * batch_size)


def draw_timeline(ax: Axes, memory: Recording, unit: str = "KiB") -> Axes:
    """Draw the bytes alive after each operator, stacked by owner, with a line where each phase begins.

    Args:
        ax: where to draw.
        memory: what was recorded.
        unit: ``KiB`` or ``MiB``.
    """
    scale = {"KiB": 1024, "MiB": 1024**2}[unit]
    lines = {owner: [size / scale for size in memory.timeline(owner)] for owner in OWNERS}
    events = range(len(memory.phases))
    colours = [OWNER_COLOURS[owner] for owner in OWNERS]
    ax.stackplot(events, *lines.values(), labels=[o.replace("_", " ") for o in OWNERS], colors=colours, step="post")
    for event in range(1, len(memory.phases)):
        if memory.phases[event] != memory.phases[event - 1]:
            ax.axvline(event, color="black", linewidth=0.8, linestyle=":")
            ax.text(event + 0.4, 1.0, memory.phases[event], transform=ax.get_xaxis_transform(), va="bottom", fontsize=8)
    ax.set(xlabel="operator", ylabel=f"alive ({unit})", xlim=(0, len(memory.phases) - 1), ylim=(0, None))
    return ax


class _Recorder(TorchDispatchMode):
    """Sees each operator just after it ran, and each storage die; made by ``recording_memory``."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording
        self.known: dict[int, tuple[weakref.ref, Block]] = {}  # by the identity of the storage's Python object
        self.in_step = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "profiler" or func is torch.ops.aten.detach.default:
            return func(*args, **(kwargs or {}))  # marks around an optimizer's step, and a second name: no work
        for tensor in _tensors((args, kwargs)):
            self.see(tensor, "other", is_older=True)
        result = func(*args, **(kwargs or {}))
        self.recording.phases.append(self.phase())
        for tensor in _tensors(result):
            self.see(tensor, "other")
        return result

    def phase(self) -> str:
        if self.in_step:
            return STEP
        return BACKWARD if torch._C._current_graph_task_id() != -1 else FORWARD  # the engine numbers its backward runs

    def see(self, tensor: Tensor, owner: str, is_older: bool = False) -> Block | None:
        """Return the block behind a tensor, a new one if it is met for the first time; None if it has no bytes."""
        if tensor.layout != torch.strided:
            return None
        storage = tensor.untyped_storage()
        entry = self.known.get(id(storage))
        if entry is not None and entry[0]() is storage:
            return entry[1]
        if storage.nbytes() == 0:
            return None
        block = Block(storage.nbytes(), owner, 0 if is_older else len(self.recording.phases) - 1)
        self.recording.blocks.append(block)

        def bury(_: object, key: int = id(storage)) -> None:
            block.died = len(self.recording.phases)
            self.known.pop(key, None)

        self.known[id(storage)] = weakref.ref(storage, bury), block
        return block

    def see_all(self, tree: Iterable[Any], owner: str) -> None:
        for tensor in _tensors(list(tree)):
            block = self.see(tensor, owner)
            if block is not None:
                block.owner = owner

    def note_saved(self, tensor: Tensor) -> Tensor:
        """Autograd saves this tensor: an activation, unless it was there before or has an owner."""
        block = self.see(tensor, "other", is_older=True)
        if block is not None and block.owner == "other" and block.born > 0:
            block.owner = "activations"
        return tensor.detach()  # the tensor itself would hold the node that holds it

    def note_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            block = self.see(parameter.grad, "gradients")
            if block is not None:
                block.owner = "gradients"

    def begin_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.in_step = True

    def end_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.in_step = False
        self.see_all([dict(state) for state in optimizer.state.values()], "optimizer_state")


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
