"""The doctor's own work raises no warning that it would then report as the reader's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from course_utils import doctor
from course_utils.seeding import seeded


@pytest.fixture
def every_warning() -> Iterator[None]:
    """Let PyTorch warn each time, not once in a process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def _setup() -> dict[str, Any]:
    with seeded(0):
        x = torch.randn(96, 6)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    loader = DataLoader(TensorDataset(x, x[:, :1] * 2), batch_size=16, shuffle=True)

    def step(model: nn.Module, batch: Any, loss_fn: Any, optimizer: Any) -> Tensor:
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss  # with what is left of its graph

    def evaluate(model: nn.Module) -> Tensor:
        return (model(x) - x[:, :1] * 2).square().mean().detach()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return {"model": model, "loader": loader, "loss_fn": nn.MSELoss(), "optimizer": optimizer, "step": step,
            "evaluate": evaluate}  # fmt: skip


def test_a_step_that_returns_its_loss_is_not_blamed_for_the_doctors_reading(every_warning):
    report = doctor.examine(**_setup())
    assert [finding.code for finding in report.findings] == []
