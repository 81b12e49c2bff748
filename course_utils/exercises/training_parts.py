"""Small networks, batches and readings that the checks of lesson 05 share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from course_utils.exercises.inputs import Inputs

Batch = tuple[Tensor, Tensor]  # images (N, ...) and labels (N,)


def classifier(inputs: Inputs, n_inputs: int, n_classes: int, *between: nn.Module) -> nn.Sequential:
    """A small float64 network with fresh weights."""
    model = nn.Sequential(nn.Linear(n_inputs, 8), *between, nn.Tanh(), nn.Linear(8, n_classes)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(inputs.randn(*parameter.shape, dtype=torch.float64) / 2)
    return model


def ragged_batches(inputs: Inputs, n_inputs: int, n_classes: int) -> list[Batch]:
    """Three batches of one size and a short last one that is much harder, so that it weighs visibly."""
    size = inputs.size(6, 9)
    sizes = [size, size, size, inputs.size(1, 2)]
    return [
        (inputs.randn(n, n_inputs, dtype=torch.float64) * (4 if n < 3 else 1), inputs.randint(0, n_classes, n))
        for n in sizes
    ]


def vector(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).clone()


def passes_of(model: nn.Module) -> list[tuple[bool, bool]]:
    """Record for each forward pass whether any layer was in training mode, and whether a graph was built."""
    seen: list[tuple[bool, bool]] = []
    model.register_forward_hook(
        lambda module, _inputs, output: seen.append((any(m.training for m in module.modules()), output.requires_grad))
    )
    return seen


def memory_of(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        (index, name): torch.as_tensor(value).clone() for index, item in state.items() for name, value in item.items()
    }
