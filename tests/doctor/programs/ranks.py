"""Programs that split their data in a function that takes a rank."""

import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

from tests.doctor.programs import faulty, healthy, mlp, regression, setup


def _program(data, generator=None):
    parts = random_split(data, [48, 16], generator=generator or torch.default_generator)
    return setup(mlp(), DataLoader(parts[0], 16), val_loader=DataLoader(parts[1], 16))


@faulty("data.split-by-global-generator", "error")
def seeded_by_rank_before_the_split(rank=0):
    data = TensorDataset(*regression())
    torch.manual_seed(100 + rank)
    return _program(data)


@faulty("data.split-by-global-generator", "error")
def split_after_draws_that_depend_on_the_rank(local_rank=1):
    data = TensorDataset(*regression())
    torch.randn(3 * local_rank)
    train, val = random_split(data, [0.75, 0.25])
    return setup(mlp(), DataLoader(train, 16), train_set=train, val_set=val)


@healthy
def one_seed_for_all_ranks(rank=0):
    data = TensorDataset(*regression())
    torch.manual_seed(7)
    return _program(data)


@healthy
def seeded_by_rank_after_the_split(rank=0):
    data = TensorDataset(*regression())
    torch.manual_seed(7)
    parts = _program(data)
    torch.manual_seed(100 + rank)
    return parts


@healthy
def a_generator_for_the_split(rank=0):
    data = TensorDataset(*regression())
    torch.manual_seed(100 + rank)
    return _program(data, torch.Generator().manual_seed(0))


@healthy
def split_of_one_process():
    torch.manual_seed(3)
    return _program(TensorDataset(*regression()))
