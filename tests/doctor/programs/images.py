"""Programs whose images come with channels last, and are given to convolutions."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.doctor.programs import batches, faulty, healthy, setup


def _pictures(n=32, h=8, w=8):
    """Return images (N, H, W, 3) of one bright spot, and which half it is in."""
    torch.manual_seed(0)
    x = 0.1 * torch.rand(n, h, w, 3)
    y = torch.randint(0, 2, (n,))
    for image, half in zip(x, y, strict=True):
        column = int(half) * (w // 2) + 1
        image[2:4, column : column + 2] += torch.tensor([0.8, 0.4, 0.1])
    return x, y


class _Net(nn.Module):
    def __init__(self, turn, width=6):
        super().__init__()
        self.turn, self.conv = turn, nn.Conv2d(3, width, 3, padding=1)
        self.head = nn.LazyLinear(2)

    def forward(self, x):
        return self.head(torch.relu(self.conv(self.turn(x))).flatten(1))


def _program(turn, **size):
    x, y = _pictures(**size)
    model = _Net(turn)
    with torch.no_grad():
        model(x[:2])
    return setup(model, batches(x, y, 8), nn.CrossEntropyLoss())


@faulty("data.channels-scrambled")
def images_viewed():
    return _program(lambda x: x.reshape(-1, 3, 8, 8))


@faulty("data.channels-scrambled")
def oblong_images_scaled_and_viewed():
    mean = torch.tensor([0.2, 0.1, 0.1])[:, None, None]
    return _program(lambda x: (x.view(len(x), 3, 6, 10) - mean) / 0.25, h=6, w=10)


class _Stored(Dataset):
    def __init__(self, turn):
        x, self.labels = _pictures()
        self.images, self.turn = (x * 255).byte().numpy(), turn

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return torch.from_numpy(self.turn(self.images[index]).astype("float32") / 255), self.labels[index]


def _from_store(turn):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    return setup(model, DataLoader(_Stored(turn), 8, shuffle=True), nn.CrossEntropyLoss())


@faulty("data.channels-scrambled")
def data_set_that_reshapes():
    return _from_store(lambda image: image.reshape(3, 8, 8))


@healthy
def data_set_that_moves_its_axes():
    return _from_store(lambda image: np.ascontiguousarray(image.transpose(2, 0, 1)))


@healthy
def images_permuted():
    return _program(lambda x: x.permute(0, 3, 1, 2))


@healthy
def images_turned_as_well():
    return _program(lambda x: x.permute(0, 3, 2, 1).contiguous())


@healthy
def channels_first_from_the_start():
    x, y = _pictures()
    model = _Net(lambda x: x.view(-1, 3, 8, 8))
    x = x.permute(0, 3, 1, 2).flatten(1)  # rows of a file, channel after channel
    with torch.no_grad():
        model(x[:2])
    return setup(model, batches(x, y, 8), nn.CrossEntropyLoss())


@healthy
def gray_images_with_an_axis_for_the_channel():
    x, y = _pictures()
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))

    def step(model, batch, loss_fn, optimizer):
        loss = loss_fn(model(batch[0].reshape(-1, 1, 8, 8)), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return setup(model, batches(x.mean(3, keepdim=True), y, 8), nn.CrossEntropyLoss(), step=step)
