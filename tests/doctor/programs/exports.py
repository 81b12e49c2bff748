"""Exported models."""

import torch
from torch import nn

from tests.doctor.programs import batches, faulty, healthy, mlp, regression, setup


def _with_dropout():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))


@faulty("export.train-mode")
def batchnorm_traced_while_training():
    x, y = regression()
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    return setup(model, batches(x, y), export=lambda model: torch.jit.trace(model, x[:4], check_trace=False))


@faulty("export.train-mode")
def exported_while_training():
    x, y = regression()
    dim = torch.export.Dim("batch")
    return setup(
        _with_dropout(), batches(x, y),
        export=lambda model: torch.export.export(model, (x[:4],), dynamic_shapes=({0: dim},)).module(),
    )  # fmt: skip


@healthy
def exported_after_eval():
    x, y = regression()
    dim = torch.export.Dim("batch")
    return setup(
        _with_dropout(), batches(x, y),
        export=lambda model: torch.export.export(model.eval(), (x[:4],), dynamic_shapes=({0: dim},)),
    )  # fmt: skip


@faulty("export.static-batch")
def fixed_batch():
    x, y = regression()
    return setup(mlp(), batches(x, y), export=lambda model: torch.export.export(model.eval(), (x[:5],)))


@faulty("export.result-differs")
def branch_frozen_in_a_trace():
    x, y = regression()

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = mlp(), nn.Linear(4, 1)

        def forward(self, x):
            return self.one(x) if x.shape[0] > 8 else self.two(x)

    return setup(Branch(), batches(x, y), export=lambda model: torch.jit.trace(model.eval(), x[:4], check_trace=False))


@healthy
def traced_without_branches():
    x, y = regression()
    return setup(mlp(), batches(x, y), export=lambda model: torch.jit.trace(model.eval(), x[:4]), example=x[:1])
