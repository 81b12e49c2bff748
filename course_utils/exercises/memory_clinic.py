"""Checks of lesson 06's clinic: memory that stays, steps that vanish, code that is compiled again and again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.compiling import compilations, quiet_compiler
from course_utils.exercises.compare import describe, has_shape, is_close, is_equal, is_true, owns_memory
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.ledger import recording_memory
from course_utils.memory import storage_bytes


def _classifier(inputs: Inputs, d: int, h: int, c: int) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, c))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(inputs.randn(*p.shape) / p.shape[-1] ** 0.5)
    return model


def check_clinic_history(validate: Callable, inputs: Inputs) -> Iterator[Check]:
    """memory.clinic-history: outputs and losses that hold the graphs of a whole validation pass."""
    d, c = inputs.sizes(2, 3, 6)
    n, h = 8, 50
    model = _classifier(inputs, d, h, c)
    batches = [(inputs.randn(n, d), inputs.randint(0, c, n)) for _ in range(9)]

    def run(count: int) -> tuple[object, int]:
        with recording_memory(model) as memory:
            answer = validate(model, batches[:count])
        return answer, memory.peak_bytes - sum(x.nbytes + y.nbytes for x, y in batches[:count])

    answer, peak = run(9)
    yield is_true(
        "returns (mean loss, scores)",
        type(answer) in (tuple, list) and len(answer) == 2,  # type: ignore[arg-type]
        detail=f"got {describe(answer)}",
        hint="Keep what the function returns.",
    )
    loss, scores = answer  # type: ignore[misc]
    with torch.no_grad():
        wanted = torch.cat([model(x) for x, _ in batches])
        wanted_loss = F.cross_entropy(wanted, torch.cat([y for _, y in batches])).item()
    yield is_close("the loss is the mean over all batches", loss, wanted_loss, hint="A Python number: .item().")
    yield has_shape("the scores are those of all examples", scores, (9 * n, c), hint="torch.cat(scores).")
    yield is_close(
        "the scores are right", scores.detach(), wanted, hint="model(x) of each batch, in the order of the batches."
    )
    yield is_true(
        "the scores are in no graph",
        not scores.requires_grad,
        detail="requires_grad is True: they hold every activation of every batch",
        hint="A validation pass needs no gradients: with torch.no_grad(), or .detach() before you keep something.",
    )
    growth = peak - run(3)[1]
    allowed = 6 * (2 * n * c * 4 + 64)  # the scores, and once more when they are put together
    yield is_true(
        "more batches need only the memory of their scores",
        growth <= allowed,
        detail=f"6 batches more need {growth:,} bytes more; their scores have {6 * n * c * 4:,}",
        hint="What else do you keep? A sum of loss *tensors* holds the graph of each.",
    )


def check_clinic_loop(train: Callable, inputs: Inputs) -> Iterator[Check]:
    """memory.clinic-loop: autocast around the whole loop serves the weights of the first step for ever."""
    d, h, c, n, steps = 5, 16, 3, 40, 15
    model = _classifier(inputs, d, h, c)
    x, y = inputs.randn(n, d), inputs.randint(0, c, n)
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, twin)]
    seen: list[bool] = []
    model.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    answer = train(model, optimizers[0], x, y, steps)
    wanted = []
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(twin(x), y)
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        wanted.append(loss.item())
    yield is_true(
        "returns the loss of each step",
        type(answer) in (list, tuple) and len(answer) == steps and all(type(v) is float for v in answer),
        detail=f"got {describe(answer)}",
        hint="losses.append(loss.item())",
    )
    yield is_true(
        "each forward pass runs under autocast",
        seen == [True] * steps,
        detail=f"autocast was on in {sum(seen)} of {len(seen)} passes",
        hint="The point is to keep autocast. Where does it begin, and where does it end?",
    )
    yield is_true(
        "the loss changes",
        len(set(answer)) > 1,
        detail=f"it is {answer[0]:.4f} in every step, though the weights move",
        hint="Autocast casts each weight once and keeps the copy until the block ends. The optimizer changes the "
        "weight, not the copy. Begin the block anew in each step.",
    )
    yield is_close(
        "the losses are those of training",
        torch.tensor(answer),
        torch.tensor(wanted),
        rtol=1e-2,
        atol=1e-2,
        hint="Forward pass and loss under autocast, once per step; zero_grad, backward and step as before.",
    )


def check_clinic_half(train: Callable, inputs: Inputs) -> Iterator[Check]:
    """memory.clinic-half: weights of 16 bits swallow small updates."""
    d, h, c, n, steps = 5, 12, 3, 30, 25
    model = _classifier(inputs, d, h, c)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.sign() * (1 + p.abs()))  # sizes above 1: their neighbours in bfloat16 are 0.008 away
    x, y = inputs.randn(n, d), inputs.randint(0, c, n)
    twin, start = copy.deepcopy(model), copy.deepcopy(model)
    seen: list[torch.dtype] = []
    results: list[Tensor] = []
    model.register_forward_pre_hook(
        lambda _, args: seen.append(
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else args[0].dtype
        )
    )
    model.register_forward_hook(lambda _, args, result: results.append(result.detach().clone()))
    train(model, x, y, steps, 1e-3)
    optimizer = torch.optim.SGD(twin.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(twin(x), y).backward()
        optimizer.step()

    def moved(other: nn.Module) -> Tensor:
        pairs = zip(other.parameters(), start.parameters(), strict=True)
        return torch.cat([(p.detach().float() - q.detach()).flatten() for p, q in pairs])

    yield is_equal(
        "makes one forward pass for each step", len(seen), steps, hint="One forward pass and one update for each step."
    )
    yield is_true(
        "they compute in bfloat16",
        set(seen) == {torch.bfloat16},
        detail=f"passes ran in {', '.join(sorted({str(dtype) for dtype in seen}))}",
        hint="torch.autocast computes in 16 bits, with weights of 32: dtype=torch.bfloat16.",
    )
    yield is_true(
        "the weights are float32",
        all(p.dtype == torch.float32 for p in model.parameters()),
        detail=f"they are {next(model.parameters()).dtype}",
        hint="In bfloat16, 1 + 0.003 is 1: an update below half the spacing is lost. Keep the weights in float32.",
    )
    shares = moved(model).norm() / moved(twin).norm()
    yield is_true(
        "the weights move about as far as in float32",
        0.9 < shares.item() < 1.1,
        detail=f"they moved {shares.item():.2f} times as far",
        hint="In bfloat16, 1 + 0.003 is 1: an update below half the spacing is lost, and no cast brings it back. Keep "
        "the weights in float32 from the first step to the last.",
    )
    yield is_true(
        "the scores follow the weights",
        not torch.equal(results[0], results[-1]),
        detail=f"they are the same in all {steps} steps",
        hint="Autocast keeps its 16-bit copy of a weight until the block ends: begin the block anew in each step.",
    )


def check_clinic_slice(remember: Callable, inputs: Inputs) -> Iterator[Check]:
    """memory.clinic-slice: a small view keeps a large storage."""
    n, d = inputs.size(50, 80), inputs.size(20, 40)
    features = [inputs.randn(n, d).requires_grad_() * 2 for _ in range(5)]
    wanted = torch.stack([f[0].detach() for f in features])
    answer = remember(iter(features))
    yield is_true(
        "returns a list of the first rows",
        type(answer) is list and len(answer) == 5,
        detail=f"got {describe(answer)}",
        hint="One row for each batch.",
    )
    for got, want in zip(answer, wanted, strict=True):
        row = got.detach() if type(got) is Tensor else got
        yield is_close("the rows are right", row, want, hint="Row 0 of each batch: features[0].")
    for row, batch in zip(answer, features, strict=True):
        yield owns_memory(
            "each row has memory of its own",
            row,
            batch,
            hint="features[0] is a view: it keeps the whole batch, also as a NumPy array. .clone() copies the row out.",
        )
    held = storage_bytes(answer)
    yield is_true(
        "the rows hold only their own bytes",
        held <= 5 * d * 4,
        detail=f"{held:,} bytes are held for {5 * d * 4:,} bytes of rows",
        hint="features[0] is a view: it keeps the whole batch. .clone() copies the row out.",
    )
    yield is_true(
        "the rows are in no graph",
        not any(row.requires_grad for row in answer),
        detail="requires_grad is True: the graph of the batch stays too",
        hint=".detach() takes a tensor out of its graph.",
    )


class _BodyAndHead(nn.Module):
    def __init__(self, inputs: Inputs, d: int, h: int, c: int) -> None:
        super().__init__()
        whole = _classifier(inputs, d, h, c)
        self.body, self.head = nn.Sequential(whole[0], nn.Tanh()), whole[2]


def check_clinic_reentrant(scores: Callable, inputs: Inputs) -> Iterator[Check]:
    """memory.clinic-reentrant: the older checkpoint gives no gradients if its input needs none."""
    n, d, h, c = inputs.sizes(4, 3, 9)
    model = _BodyAndHead(inputs, d, h, c)
    x = inputs.randn(n, d)
    wanted = model.head(model.body(x))
    with recording_memory(model) as memory:
        answer = scores(model, x)
        kept = memory.live_bytes
    yield is_close("the scores are those of head(body(x))", answer.detach(), wanted.detach(), hint="Keep the order.")
    parameters = dict(model.named_parameters())
    upstream = inputs.randn(n, c)
    right = torch.autograd.grad(wanted, list(parameters.values()), upstream)
    answer.backward(upstream)
    found = [p.grad for p in parameters.values()]
    missing = [name for name, grad in zip(parameters, found, strict=True) if grad is None]
    yield is_true(
        "every parameter gets a gradient",
        not missing,
        detail=f"{', '.join(missing)}: None, so they never learn",
        hint="The older, re-entrant checkpoint looks at its inputs alone, and x needs no gradient. "
        "use_reentrant=False has no such rule.",
    )
    for got, want in zip(found, right, strict=True):
        yield is_close("the gradients are right", got, want, hint="Compare with the model without a checkpoint.")
    with recording_memory(model) as memory:
        plain = model.head(model.body(x))
        features = memory.live_bytes
    del plain
    yield is_true(
        "the body is still checkpointed",
        kept <= features,
        detail=f"{kept - features:,} bytes more are kept",
        hint="Keep the checkpoint around model.body.",
    )
    calls: list[int] = []
    handle = model.body.register_forward_pre_hook(lambda *_: calls.append(1))  # a recomputation may stop early
    scores(model, x).sum().backward()
    handle.remove()
    yield is_equal("the body runs again in backward", len(calls), 2, hint="Keep the checkpoint around model.body.")


def check_clinic_counter(warm: type, inputs: Inputs) -> Iterator[Check]:
    """memory.clinic-counter: a Python number in the forward pass is compiled in, and anew whenever it changes."""
    n, d = inputs.sizes(2, 3, 7)
    xs = [inputs.randn(n, d) for _ in range(12)]
    layer = warm()
    yield is_true(
        "makes a module",
        isinstance(layer, nn.Module),
        detail=f"got {describe(layer)}",
        hint="Hand over the class Warm; it makes a module when it is called.",
    )
    for number, x in enumerate(xs, start=1):
        yield is_close(
            "call k gives x · min(1, k / 10)",
            layer(x),
            x * min(1.0, number / 10),
            hint="The first call is call 1, and from the tenth on x comes back as it is.",
        )
    counts = compilations(warm(), [(x,) for x in xs])
    growth = [after - before for before, after in pairwise([0, *counts])]
    yield is_true(
        "is compiled at all",
        counts[-1] >= 1,
        detail="no graph was made in 12 calls",
        hint="Compiled calls are the point: repair what is compiled anew, and don't switch the compiler off.",
    )
    yield is_true(
        "is not compiled again at every call",
        counts[-1] <= 3,
        detail=f"{counts[-1]} compilations in {len(xs)} calls",
        hint="Dynamo takes a Python number of a module for a constant, and compiles anew when it has changed. A tensor "
        'is an input of the graph: self.register_buffer("calls", torch.zeros(())), and self.calls += 1.',
    )
    yield is_equal(
        "and not at all after the third",
        sum(growth[3:]),
        0,
        hint="Nothing in forward may depend on a Python number that changes.",
    )
    with quiet_compiler():
        compiled = torch.compile(warm(), backend="eager")
        results = [compiled(x) for x in xs]
    for number, (x, result) in enumerate(zip(xs, results, strict=True), start=1):
        yield is_close(
            "compiled, call k gives the same",
            result,
            x * min(1.0, number / 10),
            hint="The count must go on inside the compiled function too.",
        )
