"""Lesson 02: what people say about gradients. What cuts or spoils them is here, the graph in autograd_graph."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.claims.autograd_graph import NOTES, PAGE, leaf
from course_utils.claims.evidence import WORKS, attempt
from course_utils.claims.ledger import Evidence
from course_utils.claims.verdicts import CAVEAT, FALSE, TRUE
from course_utils.memory import shares_storage
from course_utils.transfer import moved, snapshot

__all__ = ["PAGE"]


def grad_text(tensor: Tensor) -> str:
    """Return the gradient of a scalar as text, ``None`` if there is none."""
    return "None" if tensor.grad is None else f"{tensor.grad.item():g}"


# --- Is the gradient right? ------------------------------------------------------------------------------------------


@PAGE.claim(
    "A008",
    "Autograd computes correct gradients automatically as long as every forward operation is differentiable.",
    rule=lambda seen: TRUE if seen["log(1 + exp(x)) at x = 100"] == seen["right"] else CAVEAT,
    right="It applies the chain rule in floating point: exp(100) is inf in float32, and inf times 0 is nan, though the "
    "true slope is 1. Write it in a stable form, here F.softplus.",
    page="generated/torch.nn.functional.softplus.html",
)
def a_smooth_function_far_out() -> Evidence:
    x, stable = leaf(100.0), leaf(100.0)
    torch.log(1 + torch.exp(x)).backward()
    F.softplus(stable).backward()
    return {"log(1 + exp(x)) at x = 100": grad_text(x), "F.softplus(x)": grad_text(stable), "right": "1"}


@PAGE.claim(
    "A011",
    "Assigning to .data of a tensor that requires grad breaks the gradient chain.",
    rule=lambda seen: TRUE if seen["backward"] != WORKS or seen["gradient of x * x at x = 3"] == "None" else FALSE,
    right="The chain stays and backward runs, with the new value in place of the one that forward used: the gradient "
    "is wrong, and nothing says so.",
    page="notes/autograd.html#in-place-correctness-checks",
)
def assigning_to_data_after_forward() -> Evidence:
    x = leaf(3.0)
    y = x * x
    x.data = torch.tensor(30.0)
    seen = {"y has a grad_fn": y.grad_fn is not None, "backward": attempt(y.backward)}
    return {**seen, "gradient of x * x at x = 3": grad_text(x), "right": "6"}


@PAGE.claim(
    "A028",
    "Changing a tensor after forward can corrupt the gradient path.",
    rule=lambda seen: (
        TRUE if {seen["through .data"], seen["through NumPy"]} - {seen["untouched"]}
        else CAVEAT if seen["in place"] != seen["untouched"]
        else FALSE
    ),
    right="On this version every change is noticed, and backward raises an error.",
    page="notes/autograd.html#in-place-correctness-checks",
)  # fmt: skip
def changing_what_was_saved() -> Evidence:
    def gradient(change: str) -> str:
        x = leaf(3.0)
        h = x * 2
        y = h * h  # saves h
        if change == "in place":
            h.add_(1)
        elif change == "through .data":
            h.data.add_(1)
        elif change == "through NumPy":
            h.detach().numpy()[...] += 1
        error = attempt(y.backward)
        return grad_text(x) if error == WORKS else error

    return {change: gradient(change) for change in ("untouched", "in place", "through .data", "through NumPy")}


@PAGE.claim(
    "A013",
    "In-place operations are forbidden on tensors with requires_grad=True because the forward values are needed for "
    "gradients.",
    rule=lambda seen: TRUE if WORKS not in seen.values() else FALSE,
    right="They are forbidden only on leaves outside no_grad, whether the value is needed or not. An intermediate may "
    "be changed; if its value had been saved, backward raises an error.",
    page="notes/autograd.html#in-place-operations-with-autograd",
)
def changing_in_place() -> Evidence:
    w = torch.ones(2, requires_grad=True)

    def intermediate(saves_result: bool) -> None:
        h = w.exp() if saves_result else w * 2
        h.add_(1)
        h.sum().backward()

    def under_no_grad() -> None:
        with torch.no_grad():
            w.add_(1)

    return {
        "leaf": attempt(lambda: w.add_(1)),
        "leaf under no_grad": attempt(under_no_grad),
        "w * 2, changed, backward": attempt(lambda: intermediate(False)),
        "w.exp(), changed, backward": attempt(lambda: intermediate(True)),
    }


# --- What cuts the graph, and what does not --------------------------------------------------------------------------


@PAGE.claim(
    "A009",
    "A custom loss must be built from tensor operations only; using native Python objects in between cuts the "
    "gradient.",
    rule=lambda seen: (
        TRUE if seen["with a list, sum() and Python numbers"] != seen["tensor operations only"] else FALSE
    ),
    right="Python numbers, lists, sum() and if are fine. What cuts is taking the value out of the tensor: float(x), "
    ".item(), .tolist(), NumPy.",
    page=NOTES,
)
def a_loss_with_python_in_it() -> Evidence:
    def gradient(loss: Callable[[Tensor], Tensor]) -> str:
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        error = attempt(lambda: loss(x).backward())
        return str(x.grad.tolist()) if error == WORKS else error

    return {
        "tensor operations only": gradient(lambda x: (x**2).sum() / 3),
        "with a list, sum() and Python numbers": gradient(lambda x: sum([value**2 for value in x]) / 3.0),
        "through float()": gradient(lambda x: torch.tensor(sum(float(value) ** 2 for value in x) / 3)),
    }


@PAGE.claim(
    "A010",
    "The 'None gradient' error is caused by non-differentiable operations or in-place modification inside a custom "
    "function.",
    rule=lambda seen: (
        TRUE if not seen["None for other reasons"] and seen["changed in place"] == "None"
        else FALSE if seen["None for other reasons"] and seen["changed in place"] != "None"
        else CAVEAT
    ),
    right="A gradient is None if nothing reached the tensor: it was not used, was cut off, is no leaf, or backward has "
    "not run. A change in place gives an error instead.",
    page="generated/torch.Tensor.grad.html",
)  # fmt: skip
def reasons_for_a_missing_gradient() -> Evidence:
    def after_backward(use: Callable[[Tensor], Tensor | int]) -> str:
        x, other = leaf(2.0), leaf(1.0)
        error = attempt(lambda: (use(x) + other).backward())
        return grad_text(x) if error == WORKS else error

    unused, detached = after_backward(lambda x: 0), after_backward(lambda x: x.detach() * x.detach())
    return {
        "used": after_backward(lambda x: x * x),
        "not used in the loss": unused,
        "behind detach()": detached,
        "None for other reasons": [unused, detached].count("None"),
        "behind long(), which has no gradient": after_backward(lambda x: x.long()),
        "changed in place": after_backward(lambda x: x.exp().add_(1).exp().add_(1)),
    }


@PAGE.claim(
    "A014",
    "clone() copies the data and keeps the gradient path.",
    rule=lambda seen: TRUE if not seen["clone shares memory"] and seen["gradient through clone"] == "2" else FALSE,
    right="On this version one of the two does not hold.",
    page="generated/torch.clone.html",
)
@PAGE.claim(
    "A015",
    "detach() returns a tensor separated from the graph whose requires_grad is always False.",
    rule=lambda seen: (
        FALSE if seen["detach requires grad"]
        else CAVEAT if seen["detach requires grad after requires_grad_()"]
        else TRUE
    ),
    right="It is False at first. requires_grad_() makes the result a leaf of a graph of its own. Its memory is still "
    "that of the original.",
    page="generated/torch.Tensor.detach.html",
)  # fmt: skip
def clone_and_detach() -> Evidence:
    x = leaf(1.0)
    clone, detached = x.clone(), x.detach()
    (clone * 2).backward()
    return {
        "clone shares memory": shares_storage(x, clone),
        "gradient through clone": grad_text(x),
        "detach shares memory": shares_storage(x, detached),
        "detach requires grad": detached.requires_grad,
        "detach requires grad after requires_grad_()": detached.requires_grad_().requires_grad,
    }


@PAGE.claim(
    "A016",
    "torch.no_grad() is a global switch for gradient tracking.",
    rule=lambda seen: FALSE if seen["tracked in another thread meanwhile"] else TRUE,
    right="It holds in one thread and until its block ends: another thread goes on tracking.",
    page="generated/torch.no_grad.html",
)
def no_grad_in_two_threads() -> Evidence:
    elsewhere: list[bool] = []
    thread = threading.Thread(target=lambda: elsewhere.append((leaf(1.0) * 2).requires_grad))
    with torch.no_grad():
        here = (leaf(1.0) * 2).requires_grad
        thread.start()
        thread.join()
    return {
        "tracked inside the block": here,
        "tracked in another thread meanwhile": elsewhere[0],
        "tracked after the block": (leaf(1.0) * 2).requires_grad,
    }


@PAGE.claim(
    "A026",
    "A parameter behind a detach() or a no_grad block shows a gradient that is always zero.",
    rule=lambda seen: {"0 0": TRUE, "None None": FALSE}.get(
        f"{seen['grad, behind detach()']} {seen['grad, in a no_grad block']}", CAVEAT
    ),
    right="It shows None, which optimizers skip; a gradient of 0 still moves a weight if there is momentum or weight "
    "decay.",
    page="generated/torch.Tensor.grad.html",
)
@PAGE.claim(
    "A027",
    "Wrapping a forward branch in no_grad silently removes its gradients.",
    rule=lambda seen: (
        TRUE if seen["grad, in a no_grad block"] == "None" and seen["backward"] == WORKS else FALSE
    ),
    right="On this version it is noticed.",
    page="generated/torch.no_grad.html",
)  # fmt: skip
def parameters_behind_a_cut() -> Evidence:
    detached, silent, other = (nn.Parameter(torch.tensor(2.0)) for _ in range(3))
    with torch.no_grad():
        branch = silent * 3
    loss = (detached * 3).detach() + branch + other * 3
    return {
        "backward": attempt(loss.backward),
        "grad, behind detach()": grad_text(detached),
        "grad, in a no_grad block": grad_text(silent),
        "grad of the branch beside it": grad_text(other),
    }


@PAGE.claim(
    "A024",
    "Detaching the features of one model before feeding another keeps the first model from being updated.",
    rule=lambda seen: (
        FALSE if seen["parameters of the first that moved"]
        else CAVEAT if seen["buffers of the first that moved"]
        else TRUE
    ),
    right="Its parameters stay, but BatchNorm in train mode goes on updating its running statistics: also put the "
    "first model in eval mode.",
    page="generated/torch.nn.BatchNorm1d.html",
)  # fmt: skip
def training_on_detached_features() -> Evidence:
    first = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    second = nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1, momentum=0.9, weight_decay=0.1)
    before, before_second = snapshot(first), snapshot(second)
    for _ in range(3):
        optimizer.zero_grad()
        second(first(torch.randn(8, 3)).detach()).square().mean().backward()
        optimizer.step()
    changed, parameters = moved(first, before), dict(first.named_parameters())
    return {
        "parameters of the first that moved": sum(name in parameters for name in changed),
        "buffers of the first that moved": sum(name not in parameters for name in changed),
        "parameters of the second that moved": len(moved(second, before_second)),
    }


@PAGE.claim(
    "A030",
    "In a VAE, detach the random noise so that it does not affect gradient flow.",
    rule=lambda seen: TRUE if seen["gradients, noise as it is"] != seen["gradients, noise detached"] else FALSE,
    right="Noise from randn has no graph to be cut off from, so detach() changes nothing. What must not be detached is "
    "the sample made with it, or the encoder gets no gradient.",
    page="distributions.html#pathwise-derivative",
)
def noise_of_a_vae() -> Evidence:
    noise = torch.randn(())

    def gradients(drawn: Tensor) -> str:
        mean, log_variance = leaf(0.5), leaf(-1.0)
        sample = mean + (0.5 * log_variance).exp() * drawn
        (sample**2).backward()
        return f"{grad_text(mean)}, {grad_text(log_variance)}"

    return {
        "noise requires grad": noise.requires_grad,
        "gradients, noise as it is": gradients(noise),
        "gradients, noise detached": gradients(noise.detach()),
    }


PAGE.claims.sort(key=lambda claim: claim.id)  # two modules, one list
