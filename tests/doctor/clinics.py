"""The programs of the lessons' clinics, each wrapped as a set-up that the doctor can examine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.doctor.programs import batches, classes, mlp, regression, setup

Wrap = Callable[[Any], dict[str, Any]]
SETUPS: dict[str, Wrap] = {}  # by the item's id


def clinic(exercise_id: str) -> Callable[[Wrap], Wrap]:
    """Enter the set-up around a clinic item's program."""

    def enter(wrap: Wrap) -> Wrap:
        SETUPS[exercise_id] = wrap
        return wrap

    return enter


class Around(nn.Module):
    """A network that calls a function on its inputs, or between its two layers."""

    def __init__(self, *, before: Any = None, between: Any = None, d: int = 4, out: int = 1):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(d, 16), nn.Linear(16, out)
        self.before, self.between = before or nn.Identity(), between or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(torch.tanh(self.body(self.before(x)))))


class Whole(nn.Module):
    """A network with a body and a head, whose forward pass is the clinic's function."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor], out: int = 3):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(4, 16), nn.Linear(16, out)
        self.function = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Reading(Dataset):
    """Examples that a function reads from stored images."""

    def __init__(self, read: Callable[[Any, int], Tensor]):
        torch.manual_seed(0)
        self.images, self.read = torch.rand(64, 2, 2), read

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.read(self.images, index).flatten(), self.images[index, 0, :1].clone()


def dropout_net(d: int = 4, out: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(d, 16), nn.Dropout(0.5), nn.Linear(16, out))


@clinic("tensors.clinic-loss")
def loss_by_hand(loss_of):
    x, y = regression()
    return setup(mlp(), batches(x, y[:, 0]), loss_of)


@clinic("tensors.clinic-rows")
def rows_centred_on_the_way(centred):
    x, y = regression()
    return setup(Around(before=centred), batches(x, y))  # (16, 4): not square, as the author's test was


@clinic("tensors.clinic-darker")
def images_made_darker(darker):
    return setup(mlp(), DataLoader(Reading(darker), 8))


@clinic("tensors.clinic-onehot")
def words_as_rows(one_hot):
    torch.manual_seed(0)
    words = torch.randint(50, (64,))
    return setup(Around(before=lambda x: one_hot(x, 50), d=50), batches(words, words[:, None] / 50))


@clinic("tensors.clinic-prepare")
def arrays_prepared(prepare):
    x, y = classes()
    x, y = prepare(x.double().numpy(), y.int().numpy(), "cpu")
    return setup(mlp(4, 3), batches(x, y), nn.CrossEntropyLoss())


@clinic("autograd.clinic-features")
def features_through_a_list(scores_of):
    x, y = classes()
    return setup(Whole(scores_of), batches(x, y), nn.CrossEntropyLoss())


@clinic("autograd.clinic-softmax")
def attention_with_own_softmax(probabilities):
    x, y = regression()
    return setup(Around(between=probabilities), batches(x, y))


@clinic("autograd.clinic-two-losses")
def two_losses_in_one_step(backward_both):
    x, y = classes()

    def train(model, loader, loss_fn, optimizer):
        for x, y in loader:
            optimizer.zero_grad()
            backward_both(model, x, y, torch.zeros(len(x), 16))
            optimizer.step()

    return setup(Whole(lambda model, x: model.head(model.body(x))), batches(x, y), nn.CrossEntropyLoss(), train=train)


@clinic("autograd.clinic-distance")
def distance_to_a_point_that_coincides(distances):
    x, _ = regression()
    model = mlp(4, 4)
    nn.init.zeros_(model[2].weight)  # in the first step each prediction is the origin
    nn.init.zeros_(model[2].bias)
    targets = x.clone()
    targets[::4] = 0
    return setup(model, batches(x, targets), lambda out, label: distances(out, label).mean())


@clinic("autograd.clinic-gate")
def gate_in_a_network(gated):
    x, y = regression()
    return setup(Around(between=gated), batches(x, y))


@clinic("modules.clinic-experts")
def experts_in_a_model(experts):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.experts, self.head = experts(4, ["a", "b"]), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(torch.tanh(self.experts(x, "a") + self.experts(x, "b")))

    x, y = regression()
    return setup(Model(), batches(x, y))


@clinic("modules.clinic-predict")
def predictions_in_validation(predict):
    x, y = classes()

    def evaluate(model):
        return (predict(model, x) == y).float().mean().item()

    return setup(dropout_net(), batches(x, y), nn.CrossEntropyLoss(), evaluate=evaluate)


@clinic("modules.clinic-features")
def features_looked_at_in_each_epoch(features):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.backbone, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

        def forward(self, x):
            return self.head(torch.tanh(self.backbone(x)))

    x, y = regression()

    def train(model, loader, loss_fn, optimizer):
        for _ in range(3):
            features(model, x[:2])
            _epoch(model, loader, loss_fn, optimizer)

    return setup(Model(), batches(x, y), train=train)


@clinic("modules.clinic-dropout")
def dropout_without_mode(noisy):
    torch.manual_seed(1)
    x, y = classes()
    return setup(noisy(4, 3), batches(x, y), nn.CrossEntropyLoss())


@clinic("modules.clinic-best")
def best_state_of_a_run(best_state):
    x, y = regression()
    kept = []

    def train(model, loader, loss_fn, optimizer):
        def train_epoch(model):
            _epoch(model, loader, loss_fn, optimizer)
            with torch.no_grad():
                return loss_fn(model(x), y).item()

        kept.append(best_state(model, train_epoch, 3))

    return setup(mlp(), batches(x, y), train=train, kept=kept)


@clinic("data.clinic-evaluate")
def loader_for_the_test(make_test_loader):
    x, y = regression(70)
    data = torch.utils.data.TensorDataset(x, y)
    return setup(mlp(), DataLoader(data, 16, shuffle=True), val_loader=make_test_loader(data, 16))


@clinic("data.clinic-init")
def workers_with_a_seed(init_worker):
    import numpy as np

    def read(images, index):
        return images[index] + torch.from_numpy(np.random.normal(size=(2, 2)).astype("float32"))

    return setup(mlp(), DataLoader(Reading(read), 8, num_workers=2, worker_init_fn=init_worker))


@clinic("training.clinic-clip")
def a_clipped_step(clipped_step):
    x, y = classes()

    def step(model, batch, loss_fn, optimizer):
        clipped_step(model, *batch, optimizer, 0.1)

    return setup(mlp(4, 3), batches(x, y), nn.CrossEntropyLoss(), step=step)


@clinic("training.clinic-modes")
def a_run_with_validation(train_and_score):
    x, y = classes()

    def train(model, loader, loss_fn, optimizer):
        train_and_score(model, loader, (x, y), optimizer, 3)

    return setup(dropout_net(), batches(x, y), nn.CrossEntropyLoss(), train=train)


@clinic("training.clinic-best")
def a_run_that_keeps_its_best(train_and_keep_best):
    x, y = regression()

    def train(model, loader, loss_fn, optimizer):
        def validate(model):
            with torch.no_grad():
                return loss_fn(model(x), y).item()

        train_and_keep_best(model, lambda model, _: _epoch(model, loader, loss_fn, optimizer), validate, 3)

    return setup(mlp(), batches(x, y), train=train)


@clinic("training.clinic-resume")
def a_resumed_run(resume_run):
    def make_optimizer(parameters):
        return torch.optim.SGD(parameters, lr=0.05)

    x, y = regression()
    model = mlp()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.pt"
        torch.save({"model": model.state_dict(), "optimizer": make_optimizer(model.parameters()).state_dict()}, path)
        model, optimizer = resume_run(path, mlp, make_optimizer)
    return setup(model, batches(x, y), optimizer=optimizer)


@clinic("memory.clinic-history")
def validation_with_scores(validate):
    x, y = classes(128)
    loader = batches(x, y)
    return setup(mlp(4, 3), loader, nn.CrossEntropyLoss(), evaluate=lambda model: validate(model, loader)[0])


@clinic("memory.clinic-loop")
def a_run_in_autocast(train_mixed):
    x, y = classes()

    def train(model, loader, loss_fn, optimizer):
        train_mixed(model, optimizer, x, y, 5)

    return setup(mlp(4, 3), batches(x, y), nn.CrossEntropyLoss(), train=train)


@clinic("memory.clinic-half")
def a_run_in_bfloat16(train_half):
    x, y = classes()

    def train(model, loader, loss_fn, optimizer):
        train_half(model, x, y, 8, 1e-4)

    return setup(mlp(4, 3), batches(x, y), nn.CrossEntropyLoss(), train=train)


@clinic("memory.clinic-slice")
def rows_kept_for_a_plot(remember):
    x, y = regression()
    kept: list[Tensor] = []

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        hidden = model[0](batch[0])
        loss = loss_fn(model[2](model[1](hidden)), batch[1])
        loss.backward()
        optimizer.step()
        kept.extend(remember([hidden]))
        return loss

    return setup(mlp(), batches(x, y), step=step, kept=kept)


@clinic("memory.clinic-reentrant")
def a_checkpointed_body(checkpointed_scores):
    x, y = classes()
    return setup(Whole(checkpointed_scores), batches(x, y), nn.CrossEntropyLoss())


@clinic("export.clinic-preprocess")
def pixels_prepared_on_board(prepare_pixels):
    torch.manual_seed(0)
    pixels = torch.randint(256, (64, 1, 2, 2)).float() * torch.linspace(0.2, 1, 64)[:, None, None, None]
    model = Around(before=lambda x: prepare_pixels(x, 0.3, 0.2).flatten(1))
    return setup(model, batches(pixels, pixels.mean((1, 2, 3))[:, None] / 255))


@clinic("export.clinic-train-mode")
def a_model_shipped_after_training(ship):
    x, y = classes()
    return setup(dropout_net(), batches(x, y), nn.CrossEntropyLoss(), export=lambda model: ship(model, x[:3]))


@clinic("export.clinic-fixed-batch")
def a_layer_shipped(export_reader):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layer = nn.Linear(4, 3)

        def forward(self, images):
            return self.layer(images.flatten(1))

    x, y = classes()
    data = batches(x.unflatten(1, (1, 2, 2)), y)
    export = lambda model: export_reader(model.layer, data[0][0][:2])  # noqa: E731
    return setup(Reader(), data, nn.CrossEntropyLoss(), export=export)


def _epoch(model, loader, loss_fn, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
