"""Verdicts are measured: where PyTorch behaves otherwise, the ledger says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from course_utils.claims import autograd, modules, tensors
from course_utils.claims.ledger import Claim
from course_utils.claims.running import run_claim
from course_utils.claims.verdicts import CAVEAT, FALSE, OPINION, OUTDATED, TRUE

CLAIMS: dict[str, Claim] = {claim.id: claim for page in (tensors, autograd, modules) for claim in page.PAGE.claims}
F = nn.functional


class Change(NamedTuple):
    """One function of PyTorch that behaves otherwise, and what that does to a verdict."""

    claim: str
    before: str
    after: str
    owner: Any
    name: str
    make: Callable[[Callable], Callable]  # from what it does to what it does instead


def refuses_gaps(view: Callable) -> Callable:
    def changed(self: Tensor, *shape: int) -> Tensor:
        if not self.is_contiguous():
            raise RuntimeError("view needs a contiguous tensor")
        return view(self, *shape)

    return changed


def refuses_mixed_dtypes(operator: Callable) -> Callable:
    def changed(self: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor) and other.dtype != self.dtype:
            raise RuntimeError("expected equal dtypes")
        return operator(self, other)

    return changed


def refuses_another_order(load_state_dict: Callable) -> Callable:
    def changed(self: nn.Module, state: dict, *args: Any, **options: Any) -> Any:
        if list(state) != list(self.state_dict()):
            raise RuntimeError("another order")
        return load_state_dict(self, state, *args, **options)

    return changed


def registers_lists(set_attribute: Callable) -> Callable:
    def changed(self: nn.Module, name: str, value: Any) -> None:
        is_layers = isinstance(value, list) and any(isinstance(item, nn.Module) for item in value)
        set_attribute(self, name, nn.ModuleList(value) if is_layers else value)

    return changed


def forgets_to_add(backward: Callable) -> Callable:
    """Backward that replaces what stands in .grad of the leaves."""

    def changed(self: Tensor, *args: Any) -> None:
        todo = [self.grad_fn]
        while todo:
            node = todo.pop()
            if hasattr(node, "variable"):
                node.variable.grad = None
            todo += [parent for parent, _ in node.next_functions if parent is not None]
        backward(self, *args)

    return changed


CHANGES = {
    "view refuses whatever is not contiguous": Change("T004", FALSE, TRUE, Tensor, "view", refuses_gaps),
    "reshape never copies": Change("T005", CAVEAT, FALSE, Tensor, "reshape", lambda _old: Tensor.view),
    "reshape needs contiguous() first": Change("T025", FALSE, TRUE, Tensor, "reshape", refuses_gaps),
    "t() copies": Change("T009", TRUE, FALSE, Tensor, "t", lambda t: lambda self: t(self).clone()),
    "int * float is refused": Change("T011", OUTDATED, TRUE, Tensor, "__mul__", refuses_mixed_dtypes),
    "there is no promotion": Change("T012", OUTDATED, TRUE, Tensor, "__mul__", refuses_mixed_dtypes),
    "whole numbers become floats": Change(
        "T013", TRUE, FALSE, torch, "tensor",
        lambda tensor: lambda data, **more: tensor(data, **more).float() if data == [1, 2, 3] else tensor(data, **more),
    ),
    "randn knows no default device": Change(
        "T016", FALSE, TRUE, torch, "randn", lambda randn: partial(randn, device="cpu")
    ),
    "to() always copies": Change("T017", CAVEAT, TRUE, Tensor, "to", lambda to: lambda self, *a: to(self.clone(), *a)),
    "as_tensor copies": Change("T020", TRUE, FALSE, torch, "as_tensor", lambda _old: torch.tensor),
    "transpose copies": Change(
        "T023", TRUE, FALSE, Tensor, "transpose", lambda transpose: lambda self, *axes: transpose(self, *axes).clone()
    ),
    "contiguous always copies": Change("T026", CAVEAT, TRUE, Tensor, "contiguous", lambda _old: lambda x: x.clone()),
    "from_numpy copies": Change("T028", TRUE, FALSE, torch, "from_numpy", lambda _old: torch.tensor),
    "Linear converts its input": Change(
        "T034", FALSE, CAVEAT, nn.Linear, "forward", lambda forward: lambda self, x: forward(self, x.to(torch.float32))
    ),
    "nothing is freed": Change(
        "A005", CAVEAT, FALSE, Tensor, "backward", lambda backward: lambda self: backward(self, retain_graph=True)
    ),
    "no_grad switches nothing off": Change("A006", CAVEAT, TRUE, torch, "no_grad", lambda _old: nullcontext),
    "a branch under no_grad gets gradients": Change("A027", TRUE, FALSE, torch, "no_grad", lambda _old: nullcontext),
    "exp has the range of float64": Change("A008", CAVEAT, TRUE, torch, "exp", lambda exp: lambda x: exp(x.double())),
    "clone shares memory": Change("A014", TRUE, FALSE, Tensor, "clone", lambda _old: lambda self: self.view_as(self)),
    "requires_grad_ does nothing": Change(
        "A015", CAVEAT, TRUE, Tensor, "requires_grad_", lambda _old: lambda self, wanted=True: self
    ),
    "retain_grad does nothing": Change("A020", CAVEAT, TRUE, Tensor, "retain_grad", lambda _old: lambda self: None),
    "retain_grad is of no use": Change("A021", TRUE, FALSE, Tensor, "retain_grad", lambda _old: lambda self: None),
    "detach does not cut": Change("A026", FALSE, CAVEAT, Tensor, "detach", lambda _old: lambda x: x.view_as(x)),
    "backward replaces gradients": Change("A031", TRUE, FALSE, Tensor, "backward", forgets_to_add),
    "eval leaves BatchNorm training": Change("M003", TRUE, FALSE, nn.BatchNorm1d, "eval", lambda _old: lambda x: x),
    "values are loaded by place": Change(
        "M005", FALSE, TRUE, nn.Module, "load_state_dict", refuses_another_order
    ),
    "a model stays where it is": Change("M007", TRUE, FALSE, nn.Module, "to", lambda _old: lambda self, device: self),
    "F.dropout is off by default": Change(
        "M009", CAVEAT, TRUE, F, "dropout",
        lambda dropout: lambda x, p=0.5, training=False, inplace=False: dropout(x, p, training, inplace),
    ),
    "BatchNorm keeps no statistics": Change(
        "M011", CAVEAT, TRUE, nn, "BatchNorm1d", lambda norm: partial(norm, track_running_stats=False)
    ),
    "lists of layers are registered": Change("M015", TRUE, FALSE, nn.Module, "__setattr__", registers_lists),
    "convolutions pad": Change("M020", TRUE, FALSE, nn, "Conv2d", lambda conv: partial(conv, padding=1)),
    "torch.load trusts every file": Change(
        "M022", TRUE, OPINION, torch, "load", lambda load: lambda file, weights_only=False: load(
            file, weights_only=weights_only
        ),
    ),
    "files from a GPU load on the CPU": Change(
        "M025", TRUE, FALSE, torch, "load", lambda load: lambda file, map_location="cpu": load(
            file, map_location=map_location
        ),
    ),
    "torch.save returns what it saved": Change(
        "M027", FALSE, TRUE, torch, "save", lambda save: lambda thing, file: (save(thing, file), thing)[1]
    ),
    "state_dict copies": Change(
        "M028", FALSE, TRUE, nn.Module, "state_dict",
        lambda old: lambda self: {name: value.clone() for name, value in old(self).items()},
    ),
    "print counts parameters": Change(
        "M034", TRUE, CAVEAT, nn.Module, "__repr__",
        lambda old: lambda self: f"{old(self)} {[p.numel() for p in self.parameters()]} 448",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_behaviour_gives_another_verdict(change, monkeypatch):
    claim = CLAIMS[change.claim]
    assert run_claim(claim).verdict == change.before
    monkeypatch.setattr(change.owner, change.name, change.make(getattr(change.owner, change.name)))
    result = run_claim(claim)
    monkeypatch.undo()
    assert result.verdict == change.after, result.evidence
    assert run_claim(claim).verdict == change.before
