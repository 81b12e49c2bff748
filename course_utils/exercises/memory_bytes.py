"""Checks of lesson 06 about bytes: who owns them, what backward keeps, what recomputing saves, what is alive."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_utils.exercises.compare import describe, is_close, is_equal, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.ledger import recording_memory
from course_utils.memory import storage_bytes

KEYS = ("parameters", "gradients", "optimizer_state")


def check_owners(owners: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise memory.owners: bytes of parameters, gradients and optimizer state, by storage."""
    d, h = inputs.sizes(2, 3, 9)
    first, tied = nn.Linear(d, h, bias=False), nn.Linear(h, d, bias=False)
    tied.weight = nn.Parameter(first.weight.detach().t())  # two parameters, one storage
    frozen = nn.Linear(d, h)
    frozen.bias = nn.Parameter(torch.zeros(2 * h)[:h])  # half of a storage
    frozen.requires_grad_(False)
    norm = nn.BatchNorm1d(h, affine=False)  # no parameters, but buffers: two of 4 · h bytes, a counter of 8
    model = nn.Sequential(first, tied, frozen, norm)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    for p in (first.weight, tied.weight):
        p.grad = torch.ones_like(p)
    optimizer.step()
    answer = owners(model, optimizer)
    yield is_true(
        "returns a dict with the three owners",
        type(answer) is dict and set(answer) == set(KEYS),
        detail=f"got {describe(answer)}",
        hint=f"Its keys are {', '.join(map(repr, KEYS))}.",
    )
    weights, frozen_bytes, shown = 4 * d * h, 4 * (d * h + 2 * h), 4 * (d * h + h)
    yield is_equal(
        "parameters: each storage counts once, frozen ones too",
        answer["parameters"],
        weights + frozen_bytes,
        hint="Remember the storages you have seen: tensor.untyped_storage().data_ptr() names one.",
        mistakes=[
            (2 * weights + frozen_bytes, "Two parameters share one storage here. Count storages, not tensors."),
            (weights, "A frozen parameter has no gradient, but its bytes are there."),
            (2 * weights + shown, "Two parameters share one storage here. Count storages, not tensors."),
            (weights + shown, "A storage counts as a whole: t.untyped_storage().nbytes(), not t.nbytes."),
            ((weights + frozen_bytes) // 4, "These are numbers, not bytes."),
            ((2 * weights + shown) // 4, "These are numbers, not bytes."),
            (
                weights + frozen_bytes + 4 * 2 * h + 8,
                "BatchNorm's running mean and variance are buffers, no parameters: model.parameters() alone.",
            ),
        ],
    )
    yield is_equal(
        "gradients: only those that are there",
        answer["gradients"],
        2 * weights,
        hint="p.grad is None for a frozen parameter.",
        mistakes=[
            (weights + frozen_bytes, "A gradient is a tensor of its own: look at p.grad, not at the parameters."),
            (weights, "The two tied parameters have a gradient each."),
        ],
    )
    yield is_equal(
        "optimizer state: every tensor in it",
        answer["optimizer_state"],
        4 * weights + 2 * 4,
        hint="optimizer.state holds a dict for each parameter; add up all tensors in all of them.",
        mistakes=[
            (4 * weights, "Adam also counts its steps, in a tensor of 4 bytes for each parameter."),
            (2 * weights + 8, "Adam keeps two running means for each number, not one."),
        ],
    )
    double = nn.Linear(d, h).double()
    yield is_equal(
        "a float64 model takes 8 bytes for each number",
        owners(double, torch.optim.SGD(double.parameters(), lr=0.1)),
        {"parameters": 8 * (d * h + h), "gradients": 0, "optimizer_state": 0},
        hint="storage.nbytes() knows the size of a number. Nothing was trained, so the other owners have 0.",
    )


def check_saved(saved_bytes: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise memory.saved: bytes that a forward pass keeps for backward, beside what exists anyway."""
    n, (d, h) = inputs.size(60, 80), inputs.sizes(2, 3, 9)  # the input is larger than the weights
    model = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, d))
    x = inputs.randn(n, d)
    relus, weights = 2 * n * h * 4, (h * h + d * h) * 4
    answer = saved_bytes(model, x)
    yield is_equal(
        "an MLP keeps the output of each ReLU",
        answer,
        relus,
        hint="Each hidden layer keeps N · H numbers of 4 bytes.",
        mistakes=[
            (relus // 4, "These are numbers, not bytes."),
            (relus + weights, "Weights are saved too, but they exist anyway: leave them out."),
            (relus + x.nbytes, "The input exists anyway: leave it out."),
            (relus + x.nbytes + weights, "Weights and input exist anyway: leave them out."),
            (2 * relus, "ReLU and the next layer save the same tensor. Count storages, each once."),
            (2 * relus + x.nbytes, "ReLU and the next layer save the same tensor. Count storages, each once."),
            (2 * relus + x.nbytes + weights, "Count each storage once, and leave out those of x and the parameters."),
            (0, "Nothing arrived. Do the hooks surround the call of the model?"),
        ],
    )

    yield is_true(
        "x is left as it was",
        not x.requires_grad,
        detail="x requires gradients now",
        hint="Count what this call saves, as it stands: the weights need gradients, and that is enough.",
    )
    normed = nn.Sequential(nn.Linear(d, h, bias=False), nn.BatchNorm1d(h, affine=False))
    counted, running = 4 * n * h + 2 * 4 * h, 2 * 4 * h  # the batch's mean and spread are made in this pass
    answer = saved_bytes(normed, x)
    yield is_true(
        "the model stays in training mode",
        normed.training and normed[1].training,
        detail="it is in eval mode now",
        hint="Count what the model saves as it stands, and switch nothing.",
    )
    yield is_equal(
        "BatchNorm keeps its input and the batch's statistics",
        answer,
        counted,
        hint="Leave out the storages of parameters, buffers and x, and nothing else. Call the model as it stands.",
        mistakes=[
            (
                counted + running,
                "BatchNorm's running mean and variance are buffers, which exist anyway: leave them out.",
            ),
            (counted - running, "The model is in training mode. Count it as it stands, not in eval mode."),
        ],
    )

    class Slices(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            part = x.sin()[:, 1:]
            return part * part.tanh()  # saves a view of the sine, and the tanh

    leaf = inputs.randn(n, d, dtype=torch.float64).requires_grad_()
    yield is_equal(
        "float64 counts 8 bytes, and each storage as a whole",
        saved_bytes(Slices(), leaf),
        8 * (n * d + n * (d - 1)),
        hint="tensor.untyped_storage().nbytes() is what is kept in memory, whatever part a view shows.",
    )
    with torch.no_grad():
        nothing = saved_bytes(model, x)
    yield is_equal("without gradients nothing is kept", nothing, 0, hint="Don't turn gradients on yourself.")


def check_largest_batch(largest_batch: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise memory.largest-batch: the largest batch that fits, with few steps measured."""

    def run(limit: int, most: int, flat: int, slope: int, base: int) -> tuple[object, list[int]]:
        asked: list[int] = []

        def peak_bytes(n: int) -> int:
            asked.append(n)
            if type(n) is not int or not 1 <= n <= most:
                raise ValueError(f"peak_bytes was asked for a batch of {n}")
            return max(flat, base + slope * n)

        return largest_batch(peak_bytes, limit, most), asked

    slope, base = inputs.size(300, 900), inputs.size(5_000, 9_000)
    best, most = inputs.size(300, 600), inputs.size(900, 1000)
    flat = base + slope * 200  # below 200 examples the optimizer's step is the peak
    answer, asked = run(base + slope * best, most, flat, slope, base)
    yield is_equal(
        "finds the largest batch whose peak is at most the limit",
        answer,
        best,
        hint="Halve the range: of two halves, one can be ruled out by one measurement.",
        mistakes=[
            (best - 1, "A peak that equals the limit still fits."),
            (best + 1, "This batch does not fit any more; the one before did."),
            (most, "The limit was not looked at."),
        ],
    )
    yield is_true(
        "measures at most 12 steps",
        len(asked) <= 12,
        detail=f"measured {len(asked)} steps",
        hint="Trying all sizes takes hundreds of steps. The peak never falls as the batch grows, so halve the range.",
    )
    yield is_equal(
        "returns most if even that fits",
        run(10**9, most, flat, slope, base)[0],
        most,
        hint="Even most fits here. Is it ever measured?",
    )
    yield is_equal(
        "returns 0 if not even one fits",
        run(flat - 1, most, flat, slope, base)[0],
        0,
        hint="Not even one example fits here. Measure n = 1 too.",
    )
    yield is_equal("finds 1", run(base + slope, most, 0, slope, base)[0], 1, hint="The smallest batch has one example.")


class _Counted(nn.Module):
    """A layer that counts how often it ran."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.runs = layer, 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.layer(x)


def _deep(depth: int, width: int) -> list[_Counted]:
    return [_Counted(nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.4))) for _ in range(depth)]


def check_segments(run_in_segments: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise memory.segments: layers in checkpointed groups; same results, fewer bytes, each layer run once more."""
    n, width = inputs.sizes(2, 3, 9)
    depth, size = 7, 3  # groups of 3, 3 and 1
    layers = _deep(depth, width)
    x, upstream = inputs.randn(n, width), inputs.randn(n, width)
    parameters = [p for layer in layers for p in layer.parameters()]

    def result(call: Callable) -> tuple[Tensor, list[Tensor], int]:
        torch.manual_seed(inputs.seed)
        with recording_memory(nn.ModuleList(layers)) as memory:
            y = call()
            kept = memory.live_bytes
            if y.requires_grad:
                y.backward(upstream)  # not autograd.grad: the older kind of checkpoint can't serve it
        grads = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        return y, grads, kept

    def plain() -> Tensor:
        y = x
        for layer in layers:
            y = layer(y)
        return y

    wanted, wanted_grads, plain_bytes = result(plain)
    for layer in layers:
        layer.runs = 0
    answer, grads, kept = result(lambda: run_in_segments(layers, x, size))
    yield is_close(
        "the output is that of the layers in their order",
        answer.detach(),
        wanted.detach(),
        hint="Every layer runs once, in order; the last group may be shorter.",
        mistakes=[(x, "This is the input.")],
    )
    yield is_true(
        "the output has a graph",
        answer.requires_grad,
        detail="requires_grad is False",
        hint="use_reentrant=False: the older kind needs an input that requires gradients.",
    )
    yield is_true(
        "every layer gets a gradient",
        all(grad is not None for grad in grads),
        detail="some gradients are None",
        hint="A group is run again in backward. Did it run the same layers then? A function made in a loop sees "
        "the loop's variables as they are when it is called.",
    )
    for got, want in zip(grads, wanted_grads, strict=True):
        yield is_close(
            "the gradients are those without checkpoints",
            got,
            want,
            hint="Two causes: a function made in a loop sees the loop's *last* group when it is called again, or "
            "dropout drew anew (preserve_rng_state=False).",
        )
    yield is_true(
        "less is kept after the forward pass",
        kept < plain_bytes,
        detail=f"{kept:,} bytes are alive, {plain_bytes:,} without checkpoints",
        hint="Wrap each group, not nothing, in checkpoint(...).",
    )
    runs = [layer.runs for layer in layers]
    yield is_true(
        "each layer runs at most twice",
        max(runs) <= 2,
        detail=f"runs by layer: {runs}",
        hint="Checkpoints inside checkpoints run a layer again and again.",
    )
    least, with_plain_last = (_kept_by_groups(layers, x, size, is_plain) for is_plain in (False, True))
    allowed = max(least, with_plain_last)  # nobody waits for the last group, so it may be run plainly
    yield is_true(
        "only what enters each group is kept",
        kept <= allowed,
        detail=f"{kept:,} bytes are alive, {allowed:,} are enough",
        hint="Checkpoint groups of `size` layers: with one group for each layer, every layer's input is kept.",
    )
    yield is_true(
        "what enters each group is kept",
        kept >= least,
        detail=f"{kept:,} bytes are alive, groups of {size} layers keep {least:,}",
        hint="One checkpoint around everything keeps least now, and in backward it needs all activations at once. Cut "
        "the layers into groups of `size`.",
    )
    one = run_in_segments(layers[:1], x, 5)
    yield is_true(
        "a group may be larger than the network",
        type(one) is Tensor and one.shape == x.shape,
        detail=f"got {describe(one)}",
        hint="layers[start : start + size] may be short.",
    )


def _kept_by_groups(layers: list[_Counted], x: Tensor, size: int, last_is_plain: bool) -> int:
    """Return the bytes alive after a forward pass in checkpointed groups."""
    with recording_memory(nn.ModuleList(layers)) as memory:
        y = x
        for start in range(0, len(layers), size):
            group = nn.Sequential(*layers[start : start + size])
            is_plain = last_is_plain and start + size >= len(layers)
            y = group(y) if is_plain else checkpoint(group, y, use_reentrant=False)
        return memory.live_bytes


def check_recompute(recompute: type, inputs: Inputs) -> Iterator[Check]:
    """Exercise memory.recompute: a Function that keeps only its input, and runs again in backward."""
    n, d, h = inputs.sizes(3, 3, 9)
    run = _Counted(nn.Sequential(nn.Linear(d, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, d)))
    leaf, upstream = inputs.randn(n, d).requires_grad_(), inputs.randn(n, d)
    wanted = run(leaf.sin())
    wanted_grads = torch.autograd.grad(wanted, [leaf, *run.parameters()], upstream)
    yield is_true(
        "is a class derived from torch.autograd.Function",
        isinstance(recompute, type) and issubclass(recompute, torch.autograd.Function),
        detail=f"got {describe(recompute)}",
        hint="class Recompute(torch.autograd.Function): …",
    )
    run.runs = 0
    x = leaf.sin()  # x has a graph of its own, as the features of earlier layers have
    with recording_memory(run) as memory:
        y = recompute.apply(run, x)
        kept = memory.live_bytes
    yield is_close("the output is that of run(x)", y, wanted.detach(), hint="forward returns run(x).")
    yield is_equal("forward runs once", run.runs, 1, hint="Keep the result of the one call.")
    yield is_true(
        "the output has a graph",
        y.requires_grad,
        detail="requires_grad is False",
        hint="apply makes it require gradients if x does. Leave it so.",
    )
    bare = storage_bytes([*run.parameters(), x, y])
    yield is_true(
        "between forward and backward only x and the output are alive",
        kept <= bare,
        detail=f"{kept - bare:,} bytes more are alive",
        hint="Inside forward no graph is made unless you ask for one. Save x, and nothing that was made from it.",
    )
    (y * upstream).sum().add((0 * x).sum()).backward()  # x is used elsewhere too
    yield is_equal(
        "backward runs it once more",
        run.runs,
        2,
        hint="backward calls run once more: it needs what forward threw away.",
    )
    yield is_true(
        "x gets a gradient",
        bool((leaf.grad != 0).any()),
        detail="it is None or 0",
        hint="Return (None, the gradient of x).",
    )
    yield is_close(
        "the gradient of x is right",
        leaf.grad,
        wanted_grads[0],
        hint="Start the inner backward with grad_output: y.backward(grad_output).",
        mistakes=[
            (
                torch.autograd.grad(run(leaf.sin()), leaf, torch.ones_like(upstream))[0],
                "This is the gradient of the sum. Start the inner backward with grad_output.",
            ),
            (2 * wanted_grads[0], "The gradient arrived twice: use a detached copy of x inside."),
        ],
    )
    for p, want in zip(run.parameters(), wanted_grads[1:], strict=True):
        yield is_true(
            "the parameters of run get their gradients",
            p.grad is not None,
            detail="a gradient is None",
            hint="autograd.grad returns gradients for what you name; backward() also fills the parameters' .grad.",
        )
        yield is_close("the parameters' gradients are right", p.grad, want, hint="One inner backward fills them all.")


class _Cycle:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.me = tensor, self


def check_live(live_bytes: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise memory.live: bytes of all storages behind tensors that Python knows of."""
    n, d = inputs.size(40, 60), inputs.size(100, 200)
    gc.collect()
    gc.freeze()  # what was there before is not looked at: this keeps the check quick
    try:
        before = live_bytes()
        kept = [torch.zeros(n, d), nn.Parameter(torch.zeros(3, d)), torch.zeros(d, dtype=torch.float64)]
        views = [kept[0].t(), kept[0][1]]  # one begins where its storage does, the other doesn't
        slice_only = torch.zeros(7, n, d)[0]
        first = live_bytes()
        garbage = _Cycle(torch.zeros(11, n, d))
        del garbage
        second = live_bytes()
        del kept, views, slice_only
        third = live_bytes()
    finally:
        gc.unfreeze()
    yield is_true(
        "returns a whole number of bytes",
        type(before) is int and type(first) is int,
        detail=f"got {describe(first)}",
        hint="Add up storage.nbytes().",
    )
    plain, parameter, double, whole = 4 * n * d, 4 * 3 * d, 8 * d, 7 * 4 * n * d
    everything = plain + parameter + double + whole
    yield is_equal(
        "counts each storage once, and as a whole",
        first - before,
        everything,
        hint="By storage: {s.data_ptr(): s.nbytes()} for the storages of all tensors, summed.",
        mistakes=[
            (everything - whole + plain, "A slice keeps the storage that it was cut from. Count all of that storage."),
            (everything - parameter, "A Parameter is a tensor too: issubclass(type(o), torch.Tensor)."),
            (everything + 2 * plain + whole, "Views share a storage: count it once."),
            (everything + 2 * plain, "Views share a storage: count it once."),
            (
                everything + plain,
                "t.data_ptr() is where a view begins. t.untyped_storage().data_ptr() names the storage.",
            ),
            (everything + 2 * plain + 4 * d, "Count storages, not what each tensor shows: views add nothing."),
            (everything // 4, "These are numbers, not bytes."),
        ],
    )
    yield is_equal(
        "objects that nobody can reach any more don't count",
        second - first,
        0,
        hint="Two objects that hold each other wait for the garbage collector. Call gc.collect() first.",
    )
    yield is_true(
        "goes back when tensors are gone",
        third == before,
        detail=f"{third - before:,} bytes more than at first",
        hint="Keep no tensor in your function's own variables or in a global one.",
    )
