"""Programs that raise: the finding must say what the message means, with the layer, the line, shapes and dtypes."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from tests.doctor.programs import batches, classes, failing, mlp, regression, setup


class Net(nn.Module):
    """Two layers with the reader's own forward pass."""

    def __init__(self, forward, d=4, out=1, **layers):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(d, 16), nn.Linear(16, out)
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.function = forward

    def forward(self, x):
        return self.function(self, x)


class Items(Dataset):
    """Examples made by a function of the index."""

    def __init__(self, item, n=16):
        self.item, self.n = item, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.item(index)


def _regression(forward, **layers):
    x, y = regression()
    return setup(Net(forward, **layers), batches(x, y))


def _step(step, model=None, loss_fn=None, data=None, **more):
    x, y = data or regression()
    return setup(model or mlp(), batches(x, y), loss_fn, step=step, **more)


# Shapes.


@failing("failure.step", "shape-mismatch", "forward of Net", "self.other(x)", "(16, 16)", "(16, 8)", "add")
def residual_of_another_width():
    return _regression(lambda self, x: self.head(self.body(x) + self.other(x)), other=nn.Linear(4, 8))


@failing("failure.step", "shape-mismatch", "forward of Net", "(16, 4)", "(5,)")
def constant_of_another_length():
    return _regression(lambda self, x: self.head(self.body(x * torch.ones(5))))


@failing("failure.step", "shape-mismatch", "'head'", "takes 16 features", "(16, 32)")
def last_layer_too_narrow():
    return _regression(lambda self, x: self.head(torch.cat([self.body(x), self.body(x)], 1)))


@failing("failure.step", "shape-mismatch", "'0'", "flatten")
def images_not_flattened():
    x = torch.randn(32, 1, 4, 4)
    return setup(mlp(16), batches(x, torch.randn(32, 1)))


@failing("failure.step", "shape-mismatch", "'0' (Conv2d)", "takes 3 channels", "(8, 6, 6, 3)", "movedim")
def channels_last_images():
    x = torch.randn(16, 6, 6, 3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))
    return setup(model, batches(x, torch.randn(16, 1), 8))


@failing("failure.step", "shape-mismatch", "'1' (BatchNorm2d)", "takes 8 channels", "BatchNorm2d(4)")
def normalisation_of_other_channels():
    x = torch.randn(16, 1, 6, 6)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1)]
    return setup(nn.Sequential(*layers), batches(x, torch.randn(16, 1), 8))


@failing("failure.step", "too-small", "'3' (Conv2d)", "(8, 4, 2, 2)")
def pooled_away():
    x = torch.randn(16, 1, 8, 8)
    layers = [nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(4, 4, 5), nn.Flatten(), nn.Linear(4, 1)]
    return setup(nn.Sequential(*layers), batches(x, torch.randn(16, 1), 8))


@failing("failure.step", "hidden-state", "'rnn' (GRU)", "(8, 5, 2)", "(1, 16, 6)")
def state_of_another_batch():
    x = torch.randn(24, 5, 2)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head, self.state = nn.GRU(2, 6, batch_first=True), nn.Linear(6, 1), torch.zeros(1, 16, 6)

        def forward(self, x):
            out, _ = self.rnn(x, self.state)
            return self.head(out[:, -1])

    return setup(Reader(), batches(x, torch.randn(24, 1)))  # batches of 16 and 8


@failing("failure.step", "reshape", "(16, 16)", "[16, 8]")
def view_with_the_wrong_number():
    return _regression(lambda self, x: self.head(self.body(x).view(16, 8)))


# Labels.


@failing("failure.step", "label-shape", "mse_loss", "(16, 2)", "(16, 3)")
def label_of_another_width():
    x, _ = regression()
    return setup(mlp(4, 2), batches(x, torch.randn(64, 3)))


@failing("failure.step", "label-shape", "binary_cross_entropy_with_logits", "(16, 1)", "(16,)", "squeeze(-1)")
def logits_with_one_axis_more():
    x, y = regression()
    return setup(mlp(), batches(x, (y[:, 0] > 0).float()), nn.BCEWithLogitsLoss())


@failing("failure.step", "label-shape", "(16, 5, 7)", "(16, 5)", "transpose(1, 2)")
def sequence_with_classes_last():
    torch.manual_seed(0)
    x, y = torch.randint(7, (32, 5)), torch.randint(7, (32, 5))
    return setup(nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 7)), batches(x, y), nn.CrossEntropyLoss())


@failing("failure.step", "label-out-of-range", "from 1 to 3", "3 classes, 0 to 2", fix="y - 1")
def labels_counted_from_one():
    x, y = classes()
    return setup(mlp(4, 3), batches(x, y + 1), nn.CrossEntropyLoss())


@failing("failure.step", "label-out-of-range", "from -1 to 2", fix="ignore_index")
def a_negative_label():
    x, y = classes()
    y[3] = -1
    return setup(mlp(4, 3), batches(x, y), nn.CrossEntropyLoss())


@failing("failure.step", "label-dtype", "float32 of shape (16,)", fix="y.long()")
def float_classes():
    x, y = classes()
    return setup(mlp(4, 3), batches(x, y.float()), nn.CrossEntropyLoss())


@failing("failure.step", "label-dtype", "int64 of shape (16, 1)", fix="squeeze(1)")
def classes_in_a_column():
    x, y = classes()
    return setup(mlp(4, 3), batches(x, y[:, None]), nn.CrossEntropyLoss())


@failing("failure.step", "label-dtype", "one-hot", fix="y.float()")
def whole_one_hot_rows():
    x, y = classes()
    return setup(mlp(4, 3), batches(x, F.one_hot(y, 3)), nn.CrossEntropyLoss())


@failing("failure.step", "label-dtype", "int64", "float32", fix="y.float()")
def whole_numbers_for_bce():
    x, y = regression()
    return setup(mlp(), batches(x, (y > 0).long()), nn.BCEWithLogitsLoss())


@failing("failure.step", "not-a-probability", "scores", fix="with_logits")
def scores_for_bce():
    x, y = regression()
    return setup(mlp(), batches(x * 9, (y > 0).float()), nn.BCELoss())


# Dtypes, devices, indices.


@failing("failure.step", "dtype-mismatch", "layer '0' (Linear)", "float64", "0.weight is float32")
def numbers_of_numpy():
    x, y = regression()
    return setup(mlp(), batches(x.double(), y.double()))


@failing("failure.step", "dtype-mismatch", "'0' (Conv2d)", "uint8")
def bytes_into_a_convolution():
    x = torch.randint(256, (16, 1, 6, 6), dtype=torch.uint8)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))
    return setup(model, batches(x, torch.randn(16, 1), 8))


@failing("failure.step", "index-dtype", "'0' (Embedding)", "float32", fix="x.long()")
def float_words():
    x = torch.randint(9, (32, 5)).float()
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 1))
    return setup(model, batches(x, torch.randn(32, 1)))


@failing("failure.step", "index-out-of-range", "rows 0 to 8", "row 9", fix="nn.Embedding(10, 4)")
def a_word_too_many():
    x = torch.arange(160).view(32, 5) % 10
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 1))
    return setup(model, batches(x, torch.randn(32, 1)))


@failing("failure.step", "device-mismatch", "offset was not moved", "register_buffer", "meta")
def constant_left_on_another_device():
    x, y = regression()
    model = Net(lambda self, x: self.head(self.body(x) + self.offset))
    model.offset = torch.zeros(16, device="meta")
    return setup(model, batches(x, y))


# Gradients.


@failing("failure.step", "inplace-on-leaf", "0.weight", "a leaf", fix="no_grad")
def update_by_hand_with_a_graph():
    def step(model, batch, loss_fn, optimizer):
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        for p in model.parameters():
            p -= 0.1 * p.grad
        return loss

    return _step(step)


@failing("failure.step", "gradient-is-none", "zero_grad() sets", "1.weight", backward_passes_before=1)
def gradient_of_an_unused_layer():
    model = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

    def step(model, batch, loss_fn, optimizer):
        loss = loss_fn(model[0](batch[0]), batch[1])
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        return loss

    return _step(step, model)


@failing("failure.step", "gradient-is-none", "no backward() has run yet")
def gradient_read_too_early():
    def step(model, batch, loss_fn, optimizer):
        loss = loss_fn(model(batch[0]), batch[1])
        norm = model[0].weight.grad.norm()
        (loss + 0 * norm).backward()
        optimizer.step()
        return loss

    return _step(step)


@failing("failure.step", "inplace-modified", "output of Tanh", "(16, 16)")
def output_changed_in_place():
    def forward(self, x):
        h = torch.tanh(self.body(x))
        h += 1
        return self.head(h)

    return _regression(forward)


@failing("failure.step", "inplace-modified", "optimizer.step() between", fix="every backward()")
def update_between_two_backwards():
    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        out = model(batch[0])
        first, second = loss_fn(out, batch[1]), out.square().mean()
        first.backward(retain_graph=True)
        optimizer.step()
        second.backward()
        optimizer.step()
        return first

    return _step(step)


@failing("autograd.loss-not-connected", "", "all 4 parameters are frozen", fix="requires_grad_(True)")
def everything_frozen():
    x, y = regression()
    return setup(mlp().requires_grad_(False), batches(x, y))


@failing("failure.step", "loss-not-scalar", "(16, 1)", fix="mean()")
def loss_for_each_example():
    x, y = regression()
    return setup(mlp(), batches(x, y), nn.MSELoss(reduction="none"))


@failing("failure.step", "function-gradients", "returns 1 values", "2 arguments")
def function_with_a_gradient_missing():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.factor

    return _regression(lambda self, x: self.head(Scale.apply(self.body(x), 2.0)))


@failing("failure.step", "sparse-gradients", "0 makes sparse", fix="SparseAdam")
def adam_with_sparse_rows():
    x = torch.randint(9, (32, 5))
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(20, 1))
    return setup(model, batches(x, torch.randn(32, 1)), optimizer=torch.optim.Adam(model.parameters()))


# Calls.


@failing("failure.step", "not-a-tensor", "a tuple", fix="state")
def both_results_of_a_recurrent_layer():
    x = torch.randn(32, 5, 2)
    return setup(nn.Sequential(nn.GRU(2, 6, batch_first=True), nn.Linear(6, 1)), batches(x, torch.randn(32, 5, 1)))


@failing("failure.step", "no-attribute", "Did you mean 'head'")
def misspelt_layer():
    return _regression(lambda self, x: self.haed(self.body(x)))


@failing("failure.step", "arguments", "Net.forward takes (x)", "3 were given")
def two_arguments_for_one():
    def step(model, batch, loss_fn, optimizer):
        return model(*batch)

    return _step(step, Net(lambda self, x: x))


@failing("failure.step", "missing-key", "'labels'", "target, x")
def wrong_name_in_the_batch():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        loss = loss_fn(model(batch["x"]), batch["labels"])
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), [{"x": x, "target": y}], step=step)


@failing("failure.step", "unpacking", "a tuple of 3")
def three_parts_for_two_names():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), [(x, y, y)], step=step)


# Checkpoints.


def _loading(state):
    x, y = regression()

    def train(model, loader, loss_fn, optimizer):
        model.load_state_dict(state(model))
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss_fn(model(inputs), labels).backward()
            optimizer.step()

    return setup(mlp(), batches(x, y), train=train)


@failing("failure.train", "state-dict-mismatch", "checkpoint lacks", fix="removeprefix('module.')")
def names_of_a_wrapper():
    return _loading(lambda model: {f"module.{name}": value for name, value in model.state_dict().items()})


@failing("failure.train", "state-dict-mismatch", "2.weight is [5, 16] in the checkpoint and [1, 16]", fix="new head")
def head_of_another_size():
    return _loading(lambda model: model.state_dict() | {"2.weight": torch.zeros(5, 16), "2.bias": torch.zeros(5)})


@failing("failure.train", "state-dict-mismatch", "which the model lacks", fix="checkpoint['model']")
def whole_checkpoint_for_the_weights():
    return _loading(lambda model: {"model": model.state_dict(), "optimizer": {}})


# Data.


def _of(item, n=16, **options):
    return setup(mlp(), DataLoader(Items(item, n), 4, **options))


@failing("failure.loader", "unequal-sizes", "part 0", "(3,), (4,)")
def sentences_of_different_lengths():
    return _of(lambda i: (torch.randn(3 + i % 2), torch.zeros(1)))


@failing("failure.loader", "not-collatable", "None for example 2", "no return")
def branch_without_a_return():
    return _of(lambda i: None if i == 6 else (torch.randn(4), torch.zeros(1)))


@failing("failure.loader", "different-keys", "keys 'x', 'y'", "keys 'x'")
def dicts_with_different_keys():
    return _of(lambda i: {"x": torch.randn(4), "y": torch.zeros(1)} if i % 4 == 0 else {"x": torch.randn(4)})


@failing("failure.loader", "example-index", "dataset[10]", "16 examples", index=10, length=16)
def length_of_another_list():
    rows = list(torch.randn(10, 4))
    return _of(lambda i: (rows[i], torch.zeros(1)))


@failing("failure.loader", "example-key", "looks up 1", "filtered table")
def filtered_table_with_old_numbers():
    table = {i: torch.randn(4) for i in range(0, 32, 2)}
    return _of(lambda i: (table[i], torch.zeros(1)))


@failing("failure.loader", "mixed-kinds", "example 0 is a tensor", "example 1 is float")
def tensors_and_numbers_in_one_batch():
    return _of(lambda i: 1.0 if i % 2 else torch.zeros(()))


@failing("failure.loader", "example-index", "asks for example 9", largest_index=9, stored=8)
def indices_beyond_a_subset():
    data = Subset(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), [0, 3, 5, 9])
    return setup(mlp(), DataLoader(data, 2))


@failing("failure.train", "missing-key", "Worker 0", "'b'")
def worker_that_raises():
    x, y = regression()

    def train(model, loader, loss_fn, optimizer):
        for _ in DataLoader(Items(lambda i: {"a": 1}["b"]), 4, num_workers=1):
            pass

    return setup(mlp(), batches(x, y), train=train)


@failing("failure.evaluate", "numpy-with-graph", "NumPy", fix="detach()")
def metric_in_numpy():
    x, y = regression()
    return setup(mlp(), batches(x, y), evaluate=lambda model: np.abs(model(x).numpy() - y.numpy()).mean())


# Memory.


@failing("failure.step", "out-of-memory", "activations", "A batch of 8 ran", parameters_bytes=388, batch_size=16)
def no_memory_for_the_batch():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        if len(batch[0]) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), optimizer=None, step=step)
