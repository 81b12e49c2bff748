"""Lesson 02, the part about the graph: what is recorded, what is a leaf, and in which order backward goes."""

from __future__ import annotations

import torch
from torch import Tensor

from course_utils.claims.evidence import WORKS, attempt, warnings_of
from course_utils.claims.ledger import Evidence, Page
from course_utils.claims.verdicts import CAVEAT, FALSE, TRUE

PAGE = Page("autograd")
NOTES = "notes/autograd.html"


def leaf(value: float) -> Tensor:
    """Return a new scalar that wants a gradient."""
    return torch.tensor(value, requires_grad=True)


def node_names(output: Tensor) -> list[str]:
    """Return the names of the nodes behind ``output`` without the leaves, each once; empty if there is no graph."""
    todo, seen = [output.grad_fn], {}
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen[node] = node.name()
            todo += [parent for parent, _ in node.next_functions]
    return [name for name in seen.values() if "AccumulateGrad" not in name]


def all_some_or_none(held: list[bool]) -> str:
    """Return ``true``, ``caveat`` or ``false``."""
    return TRUE if all(held) else CAVEAT if any(held) else FALSE


# --- What is recorded ------------------------------------------------------------------------------------------------


@PAGE.claim(
    "A001",
    "Python if/for control flow in forward is run for real on each call, so the network depth may depend on the "
    "input's size or values and still be differentiated.",
    rule=lambda seen: (
        TRUE if seen["gradient at 5"] == 3 and seen["gradient at 1"] == 27 and seen["nodes at 5"] < seen["nodes at 1"]
        else FALSE
    ),
    right="On this version the depth does not follow the input.",
    page=NOTES,
)  # fmt: skip
def a_loop_that_ends_when_it_likes() -> Evidence:
    seen: dict[str, float] = {}
    for start in (5.0, 1.0):
        x = y = leaf(start)
        while y.abs() < 10:
            y = y * 3
        y.backward()
        seen |= {f"nodes at {start:.0f}": len(node_names(y)), f"gradient at {start:.0f}": x.grad.item()}
    return seen


@PAGE.claim(
    "A002",
    "The autograd graph is rebuilt on every forward pass.",
    rule=lambda seen: TRUE if not seen["second pass reuses the node"] else FALSE,
    right="On this version the second pass uses the graph of the first.",
    page=NOTES,
)
def the_same_forward_twice() -> Evidence:
    x = leaf(2.0)
    first, second = x * x, x * x
    second.backward()
    return {
        "second pass reuses the node": first.grad_fn is second.grad_fn,
        "backward of the first, after that of the second": attempt(first.backward),
        "gradient after both": x.grad.item(),
    }


@PAGE.claim(
    "A003",
    "For y = x**2 + 3x + 1 at x=2, y.backward() stores x.grad = 7.",
    rule=lambda seen: TRUE if seen["x.grad"] == 7.0 else FALSE,
    right="On this version it is another number.",
    page="generated/torch.Tensor.backward.html",
)
def gradient_of_a_polynomial() -> Evidence:
    x = leaf(2.0)
    (x**2 + 3 * x + 1).backward()
    return {"x.grad": x.grad.item()}


@PAGE.claim(
    "A004",
    "Once a tensor has requires_grad=True, every tensor computed from it automatically records a grad_fn.",
    rule=lambda seen: all_some_or_none(list(seen.values())) if seen["x * 2"] else FALSE,
    right="Not results of integers or truth values (argmax, x > 0, long()), not what detach() returns, and nothing "
    "under no_grad.",
    page=NOTES,
)
@PAGE.claim(
    "A006",
    "requires_grad=True tensors need not be the original input; every intermediate produced by a differentiable op "
    "automatically has a grad_fn.",
    rule=lambda seen: all_some_or_none([value for name, value in seen.items() if name.startswith("x * 2")]),
    right="It has one if gradient mode is on and at least one input requires a gradient; under no_grad the same "
    "operation records nothing.",
    page="notes/autograd.html#locally-disabling-gradient-computation",
)
def results_with_a_grad_fn() -> Evidence:
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    with torch.no_grad():
        silent = x * 2
    results = {"x * 2": x * 2, "x * 2 under no_grad": silent, "x.exp()": x.exp(), "x > 2": x > 2,
               "x.argmax()": x.argmax(), "x.long()": x.long(), "x.detach()": x.detach()}  # fmt: skip
    return {name: result.grad_fn is not None for name, result in results.items()}


@PAGE.claim(
    "A017",
    "Every line executed extends the graph; even x = x + 1 in a loop is recorded.",
    rule=lambda seen: all_some_or_none([count > 0 for count in seen.values()]),
    right="Only lines whose input requires a gradient, while gradient mode is on. Then the loop is recorded step by "
    "step; otherwise nothing is.",
    page=NOTES,
)
def nodes_of_three_additions() -> Evidence:
    def after_three_steps(x: Tensor) -> int:
        for _ in range(3):
            x = x + 1
        return len(node_names(x))

    with torch.no_grad():
        silent = after_three_steps(leaf(1.0))
    return {
        "nodes, x requires a gradient": after_three_steps(leaf(1.0)),
        "nodes, plain x": after_three_steps(torch.tensor(1.0)),
        "nodes under no_grad": silent,
    }


@PAGE.claim(
    "A018",
    "For z = x*y the grad_fn is MulBackward and it keeps references to x and y.",
    rule=lambda seen: (
        FALSE if not seen["grad_fn"].startswith("MulBackward") or not seen["both require grad: keeps x and y"]
        else TRUE if seen["y is a constant: keeps x"]
        else CAVEAT
    ),
    right="It keeps what the gradients that are wanted need: y for the gradient of x, x for that of y. Where y is a "
    "constant, x is not kept.",
    page="notes/autograd.html#saved-tensors",
)  # fmt: skip
def what_a_product_keeps() -> Evidence:
    x, y, constant = leaf(2.0), leaf(3.0), torch.tensor(3.0)
    node, other = (x * y).grad_fn, (x * constant).grad_fn
    return {
        "grad_fn": node.name(),
        "both require grad: keeps x and y": node._saved_self is x and node._saved_other is y,
        "y is a constant: keeps y": other._saved_other is not None,
        "y is a constant: keeps x": other._saved_self is not None,
    }


# --- Backward --------------------------------------------------------------------------------------------------------


@PAGE.claim(
    "A005",
    "After backward() the computation graph is freed by default.",
    rule=lambda seen: (
        FALSE if seen["second backward of x * x"] == WORKS
        else CAVEAT if seen["nodes of x * x after backward"] or seen["second backward of x + 1"] == WORKS
        else TRUE
    ),
    right="What is freed are the tensors that were saved for backward. The nodes live as long as their output, and "
    "where nothing had been saved, as in x + 1, a second backward works.",
    page="notes/autograd.html#saved-tensors",
)  # fmt: skip
def backward_a_second_time() -> Evidence:
    x = leaf(2.0)
    product, shifted = x * x, x + 1
    product.backward()
    shifted.backward()
    return {
        "nodes of x * x after backward": len(node_names(product)),
        "second backward of x * x": attempt(product.backward).split(" (")[0],
        "second backward of x + 1": attempt(shifted.backward),
    }


@PAGE.claim(
    "A007",
    "loss.backward() starts at a scalar loss, walks the graph in reverse topological order and applies the chain rule.",
    rule=lambda seen: TRUE if seen["each after all that use it"] and seen["gradient"] == seen["chain rule"] else FALSE,
    right="On this version the order is another one.",
    page=NOTES,
)
@PAGE.claim(
    "A029",
    "The engine calls recorded backward functions in topological order from the output to the leaves.",
    rule=lambda seen: TRUE if seen["each after all that use it"] else FALSE,
    right="On this version the order is another one.",
    page=NOTES,
)
def order_of_a_diamond() -> Evidence:
    x = leaf(2.0)
    a = x * x
    b, c = a + 1, a * 3
    loss = b * c  # a is used on two ways
    order: list[str] = []
    for name, tensor in {"a": a, "b": b, "c": c, "loss": loss}.items():
        tensor.grad_fn.register_prehook(lambda grads, name=name: order.append(name))
    loss.backward()
    return {
        "order": ", ".join(order),
        "each after all that use it": order[0] == "loss" and order[-1] == "a" and len(order) == 4,
        "gradient": x.grad.item(),
        "chain rule": (3 * 4 + 3 * 5) * 2 * 2.0,  # (dloss/db db/da + dloss/dc dc/da) da/dx at a = 4, b = 5, c = 12
    }


@PAGE.claim(
    "A019",
    "A non-scalar result needs reduction (e.g. sum) before backward() without arguments.",
    rule=lambda seen: TRUE if seen["backward of 3 values"] != WORKS == seen["backward of their sum"] else FALSE,
    right="On this version it does not.",
    page="generated/torch.Tensor.backward.html",
)
def backward_of_three_values() -> Evidence:
    x = torch.ones(3, requires_grad=True)
    return {
        "backward of 3 values": attempt(lambda: (x * 2).backward()),
        "backward of their sum": attempt(lambda: (x * 2).sum().backward()),
        "backward with a gradient as argument": attempt(lambda: (x * 2).backward(torch.ones(3))),
    }


@PAGE.claim(
    "A031",
    "Doing two backward passes before one step mixes both gradients.",
    rule=lambda seen: TRUE if seen["after both"] == seen["first alone"] + seen["second alone"] else FALSE,
    right="On this version the second replaces the first.",
    page="generated/torch.Tensor.backward.html",
)
def two_backward_passes() -> Evidence:
    def gradient(*factors: float) -> float:
        x = leaf(1.0)
        for factor in factors:
            (factor * x).backward()
        return x.grad.item()

    return {"first alone": gradient(2.0), "second alone": gradient(5.0), "after both": gradient(2.0, 5.0)}


# --- Leaves ----------------------------------------------------------------------------------------------------------


@PAGE.claim(
    "A020",
    "Only leaf tensors keep .grad after backward; reading .grad on an intermediate gives None.",
    rule=lambda seen: (
        FALSE if seen["leaf"] == "None" or seen["intermediate"] != "None"
        else CAVEAT if seen["intermediate with retain_grad()"] != "None"
        else TRUE
    ),
    right="Intermediates keep it as well if retain_grad() was called on them before backward; without it .grad is None "
    "and reading it warns.",
    page="generated/torch.Tensor.retain_grad.html",
)  # fmt: skip
@PAGE.claim(
    "A021",
    "Call retain_grad() to keep the gradient of an intermediate tensor.",
    rule=lambda seen: TRUE if seen["intermediate with retain_grad()"] == "4.0" else FALSE,
    right="On this version retain_grad() does not keep it.",
    page="generated/torch.Tensor.retain_grad.html",
)
def gradients_after_backward() -> Evidence:
    x = leaf(1.0)
    plain, kept = x * 2, x * 3
    kept.retain_grad()
    (plain * 4 + kept * 4).backward()

    def text(tensor: Tensor) -> str:
        return "None" if tensor.grad is None else str(tensor.grad.item())

    return {
        "leaf": text(x),
        "intermediate": text(plain),
        "intermediate with retain_grad()": text(kept),
        "reading .grad of an intermediate warns": warnings_of(lambda: plain.grad) != "none",
    }


@PAGE.claim(
    "A022",
    "A leaf tensor is one created directly by the user and not computed from other tensors.",
    rule=lambda seen: (
        FALSE if not seen["w is a leaf"] or seen["w * 2 is a leaf"]
        else CAVEAT if seen["plain * 2 is a leaf"] or seen["(w * 2).detach() is a leaf"]
        else TRUE
    ),
    right="A leaf is a tensor without grad_fn. So what is computed from plain tensors is one too, and so is what "
    "detach() returns.",
    page="generated/torch.Tensor.is_leaf.html",
)  # fmt: skip
@PAGE.claim(
    "A023",
    "Operations starting from leaf tensors are tracked by default.",
    rule=lambda seen: (
        FALSE if not seen["plain * 2 is tracked"] or not seen["w * 2 is tracked"] else TRUE
    ),
    right="A new tensor is a leaf and requires no gradient, so by default nothing is tracked; it takes "
    "requires_grad=True, which nn.Parameter sets.",
    page="generated/torch.Tensor.is_leaf.html",
)  # fmt: skip
def which_tensors_are_leaves() -> Evidence:
    w, plain = leaf(1.0), torch.tensor(1.0)
    return {
        "w is a leaf": w.is_leaf,
        "w * 2 is a leaf": (w * 2).is_leaf,
        "plain is a leaf": plain.is_leaf,
        "plain * 2 is a leaf": (plain * 2).is_leaf,
        "(w * 2).detach() is a leaf": (w * 2).detach().is_leaf,
        "w * 2 is tracked": (w * 2).grad_fn is not None,
        "plain * 2 is tracked": (plain * 2).grad_fn is not None,
    }


@PAGE.claim(
    "A025",
    "Setting requires_grad=False on an intermediate result makes autograd skip it.",
    rule=lambda seen: (
        FALSE if seen["h.requires_grad = False"] != WORKS else TRUE if seen["x.grad"] == "None" else CAVEAT
    ),
    right="An error says that only leaves have a flag that can be changed: use h.detach().",
    page="generated/torch.Tensor.detach.html",
)
def switching_off_an_intermediate() -> Evidence:
    x = leaf(1.0)
    h = x * 2
    seen = {"h.requires_grad = False": attempt(lambda: setattr(h, "requires_grad", False))}
    (h * 3).backward()
    return {**seen, "x.grad": str(None if x.grad is None else x.grad.item())}


@PAGE.claim(
    "A012",
    "Printing x.requires_grad and x.grad_fn finds the break: grad_fn None means the node is not in the "
    "differentiable chain.",
    rule=lambda seen: (
        FALSE if seen["grad_fn, behind detach()"] != "None"
        else CAVEAT if seen["grad_fn of a parameter"] == "None" and seen["the parameter gets a gradient"]
        else TRUE
    ),
    right="Parameters and other leaves have no grad_fn either, and they get gradients. A break is where a result says "
    "requires_grad=False though one of its inputs says True.",
    page=NOTES,
)  # fmt: skip
def looking_for_a_break() -> Evidence:
    w = torch.nn.Parameter(torch.tensor(2.0))
    h = w * 3
    cut = h.detach() * 2
    (h + cut).backward()
    return {
        "grad_fn, behind detach()": str(cut.grad_fn),
        "requires_grad, behind detach()": cut.requires_grad,
        "grad_fn of a parameter": str(w.grad_fn),
        "requires_grad of a parameter": w.requires_grad,
        "the parameter gets a gradient": w.grad is not None,
    }
