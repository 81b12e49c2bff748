"""Validation and metrics."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.doctor.programs import batches, classes, faulty, healthy, mlp, regression, setup


def _modes():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


@faulty("evaluation.train-mode")
def eval_forgotten():
    x, y = regression()

    @torch.no_grad()
    def evaluate(model):
        return F.mse_loss(model(x), y).item()

    return setup(_modes(), batches(x, y), evaluate=evaluate)


@faulty("evaluation.train-mode")
def eval_after_the_loop():
    x, y = regression()

    def evaluate(model, loader):
        total = 0.0
        with torch.no_grad():
            for inputs, labels in loader:
                total += F.mse_loss(model(inputs), labels, reduction="sum").item()
        model.eval()
        return total / 64

    return setup(_modes(), batches(x, y), evaluate=evaluate)


@healthy
def eval_and_back():
    x, y = regression()

    @torch.no_grad()
    def evaluate(model):
        was = model.training
        model.eval()
        value = F.mse_loss(model(x), y).item()
        model.train(was)
        return value

    return setup(_modes(), batches(x, y), evaluate=evaluate)


@healthy
def monte_carlo_dropout():
    x, y = regression()

    @torch.no_grad()
    def evaluate(model):
        model.eval()
        model[3].train()
        draws = torch.stack([model(x) for _ in range(5)])
        return draws.mean().item(), draws.std().item()

    return setup(_modes(), batches(x, y), evaluate=evaluate)


@healthy
def nothing_that_has_modes():
    x, y = regression()

    def evaluate(model):
        with torch.inference_mode():
            return F.mse_loss(model(x), y).item()

    return setup(mlp(), batches(x, y), evaluate=evaluate)


@faulty("evaluation.keeps-graphs")
def sum_with_graph():
    x, y = regression(128)
    loader = batches(x, y)

    def evaluate(model):
        total = 0
        for inputs, labels in loader:
            total = total + F.mse_loss(model(inputs), labels)
        return float(total) / len(loader)

    return setup(mlp(), loader, evaluate=evaluate)


@faulty("evaluation.mean-of-means")
def accuracy_averaged_over_batches():
    x, y = classes(36)
    data = TensorDataset(x, y)

    def evaluate(model):
        model.eval()
        scores = []
        with torch.no_grad():
            for inputs, labels in DataLoader(data, 16) if False else loader:
                scores.append((model(inputs).argmax(1) == labels).float().mean())
        model.train()
        return torch.stack(scores).mean().item()

    loader = DataLoader(data, 16)
    return setup(mlp(4, 3), loader, nn.CrossEntropyLoss(), evaluate=evaluate)


@healthy
def accuracy_counted():
    x, y = classes(36)
    loader = DataLoader(TensorDataset(x, y), 16)

    def evaluate(model):
        right = 0
        with torch.no_grad():
            for inputs, labels in loader:
                right += (model(inputs).argmax(1) == labels).sum().item()
        return right / 36

    return setup(mlp(4, 3), loader, nn.CrossEntropyLoss(), evaluate=evaluate)


@healthy
def mean_of_equal_batches():
    x, y = classes(64)
    loader = DataLoader(TensorDataset(x, y), 16)

    def evaluate(model):
        with torch.no_grad():
            scores = [(model(a).argmax(1) == b).float().mean().item() for a, b in loader]
        return sum(scores) / len(scores)

    return setup(mlp(4, 3), loader, nn.CrossEntropyLoss(), evaluate=evaluate)


@faulty("evaluation.weights-change")
def validation_trains():
    x, y = regression()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def evaluate(model):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return setup(model, batches(x, y), optimizer=optimizer, evaluate=evaluate)


@faulty("evaluation.metric-broadcast")
def accuracy_of_all_pairs():
    x, y = regression()
    label = (y > 0).float()
    return setup(
        mlp(), batches(x, label), nn.BCEWithLogitsLoss(),
        metric=lambda outputs, labels: ((outputs > 0).float() == labels.squeeze(1)).float().mean(),
    )  # fmt: skip


@faulty("evaluation.metric-blind")
def argmax_over_the_batch():
    x, y = classes(64, c=4)
    loader = batches(x, y, 4)
    mixed = [b for b in loader if len(b[1].unique()) > 1]
    return setup(
        mlp(4, 4),
        mixed,
        nn.CrossEntropyLoss(),
        metric=lambda out, labels: (out.argmax(0).sort().values == torch.arange(4)).float().mean(),
    )


@healthy
def usual_accuracy():
    x, y = classes()
    return setup(mlp(4, 3), batches(x, y), nn.CrossEntropyLoss(),
                 metric=lambda outputs, labels: (outputs.argmax(1) == labels).float().mean().item())  # fmt: skip


@healthy
def binary_accuracy():
    x, y = regression()
    return setup(
        mlp(), batches(x, (y > 0).float()), nn.BCEWithLogitsLoss(),
        metric=lambda outputs, labels: ((outputs > 0) == labels.bool()).float().mean(),
    )  # fmt: skip


@healthy
def root_mean_squared_error():
    x, y = regression()
    return setup(mlp(), batches(x, y), metric=lambda a, b: (a - b).pow(2).mean().sqrt())
