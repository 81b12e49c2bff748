"""Shapes, dtypes, views."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.doctor.programs import batches, classes, faulty, healthy, mlp, regression, setup


@faulty("loss.broadcast")
def squared_error_by_hand():
    x, y = regression()
    return setup(mlp(), batches(x, y.squeeze(1)), lambda out, label: ((out - label) ** 2).mean())


@faulty("loss.broadcast")
def squeezed_prediction():
    x, y = regression()
    model = nn.Sequential(mlp(), nn.Flatten(0))
    return setup(model, batches(x, y), nn.SmoothL1Loss())


@faulty("loss.broadcast")
def broadcast_in_own_step():
    x, y = regression()

    def step(net, batch, criterion, opt):
        inputs, target = batch
        opt.zero_grad()
        residual = net(inputs) - target
        loss = residual.abs().mean()
        loss.backward()
        opt.step()
        return loss

    return setup(mlp(), batches(x, y.squeeze(1)), step=step)


@faulty("loss.broadcast")
def advantage_times_log_prob():
    x, _ = regression()
    reward = x[:, :1].clone()

    def step(model, batch, loss_fn, optimizer):
        state, value = batch
        policy = torch.distributions.Categorical(logits=model(state))
        optimizer.zero_grad()
        loss = -(policy.log_prob(policy.sample()) * value).mean()
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(out=3), batches(x, reward), step=step)


@healthy
def pairwise_ranking():
    x, y = regression()

    def ranking(out, label):
        score = out.squeeze(1)
        difference = score[:, None] - score[None, :]
        order = torch.sign(label - label.T)
        return F.softplus(-difference * order).mean()

    return setup(mlp(), batches(x, y), ranking)


@healthy
def maximum_mean_discrepancy():
    x, y = regression()

    def mmd(out, label):
        def kernel(a, b):
            return torch.exp(-((a[:, None] - b[None, :]) ** 2).sum(-1)).mean()

        return kernel(out, out) + kernel(label, label) - 2 * kernel(out, label)

    return setup(mlp(), batches(x, y), mmd)


@healthy
def weights_per_example():
    x, y = regression()
    weight = torch.rand(64, 1)
    loader = [((a, b), c) for (a, b), (_, c) in zip(batches(x, weight), batches(x, y), strict=True)]

    def step(model, batch, loss_fn, optimizer):
        (inputs, weights), labels = batch
        optimizer.zero_grad()
        loss = (weights * (model(inputs) - labels) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), loader, step=step)


@healthy
def mean_per_feature():
    x, y = regression()

    class Centered(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("center", torch.zeros(4))
            self.net = mlp()

        def forward(self, inputs):
            return self.net(inputs - self.center)

    return setup(Centered(), batches(x, y))


@faulty("model.mixes-batch")
def reshape_swaps_axes():
    torch.manual_seed(0)
    x = torch.randn(48, 6, 3)
    y = x[..., 0].sum(1, keepdim=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 8)
            self.head = nn.Linear(8, 1)

        def forward(self, inputs):
            n, t, d = inputs.shape
            out, _ = self.lstm(inputs.reshape(t, n, d))
            return self.head(out[-1])

    return setup(Net(), batches(x, y))


@faulty("model.mixes-batch")
def batch_first_forgotten():
    torch.manual_seed(0)
    x = torch.randn(48, 6, 3)
    y = x[..., 0].sum(1, keepdim=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(3, 8), nn.Linear(8, 1)

        def forward(self, inputs):
            return self.head(self.gru(inputs)[0][:, -1])

    return setup(Net(), batches(x, y))


@faulty("model.mixes-batch")
def attention_over_the_batch():
    torch.manual_seed(0)
    x = torch.randn(32, 5, 8)
    y = x[:, 0, :1].clone()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.position = nn.Parameter(torch.randn(1, 5, 8))
            self.attention, self.head = nn.MultiheadAttention(8, 2), nn.Linear(8, 1)

        def forward(self, inputs):
            h = inputs + self.position
            h, _ = self.attention(h, h, h)
            return self.head(h[:, 0])

    return setup(Net(), batches(x, y, 8))


@faulty("model.mixes-batch")
def softmax_over_the_batch():
    x, y = classes()

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.score, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, inputs):
            return self.head(inputs * F.softmax(self.score(inputs), dim=0))

    return setup(Gate(), batches(x, y), nn.CrossEntropyLoss())


@faulty("model.mixes-batch")
def conv_after_view():
    torch.manual_seed(0)
    x = torch.rand(24, 6, 6, 3)
    y = x.mean((1, 2, 3)).view(-1, 1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 1)

        def forward(self, images):
            h = images.permute(3, 0, 1, 2).reshape(images.shape[0], 3, 6, 6)
            return self.head(self.conv(h).mean((2, 3)))

    return setup(Net(), batches(x, y, 8))


@healthy
def time_first_on_purpose():
    torch.manual_seed(0)
    x = torch.randn(6, 48, 3)
    y = x[..., 0].sum(0).unsqueeze(1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(3, 8), nn.Linear(8, 1)

        def forward(self, inputs):
            return self.head(self.gru(inputs)[0][-1])

    return setup(Net(), [(x[:, i : i + 16], y[i : i + 16]) for i in range(0, 48, 16)])


@healthy
def graph_network_on_one_graph():
    torch.manual_seed(0)
    adjacency = torch.eye(40) + torch.diag(torch.ones(39), 1)
    adjacency = adjacency / adjacency.sum(1, keepdim=True)
    x = torch.randn(40, 5)
    y = (adjacency @ x).sum(1) > 0

    class Gcn(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", adjacency)
            self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 2)

        def forward(self, nodes):
            return self.two(self.a @ torch.relu(self.one(self.a @ nodes)))

    return setup(Gcn(), [(x, y.long())], nn.CrossEntropyLoss())


@healthy
def contrastive_pairs_in_batch():
    torch.manual_seed(0)
    x = torch.randn(64, 2, 6)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(6, 8)

        def forward(self, pair):
            a, b = F.normalize(self.net(pair[:, 0]), dim=1), F.normalize(self.net(pair[:, 1]), dim=1)
            return a @ b.T / 0.1

    labels = torch.arange(16)
    return setup(Encoder(), [(x[i : i + 16], labels) for i in range(0, 64, 16)], nn.CrossEntropyLoss())


@faulty("model.squeeze-drops-batch")
def squeeze_with_last_batch_of_one():
    x, y = regression(33)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, inputs):
            return torch.squeeze(self.net(inputs))

    return setup(Net(), DataLoader(TensorDataset(x, y.squeeze(1)), 16), nn.MSELoss())


@healthy
def squeeze_where_no_single_example_comes():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, inputs):
            return self.net(inputs).squeeze()

    return setup(Net(), batches(x, y.squeeze(1)))


@faulty("failure.step")
def float64_inputs():
    data = np.random.default_rng(0).normal(size=(32, 4))
    x = torch.from_numpy(data)
    return setup(mlp(), batches(x, x.sum(1, keepdim=True).float()))


@faulty("loss.float64")
def float64_labels():
    x, y = regression()
    return setup(mlp(), batches(x, y.double()), nn.MSELoss())


@faulty("failure.step")
def float_class_labels():
    x, y = classes()
    return setup(mlp(4, 3), batches(x, y.float()), nn.CrossEntropyLoss())


@faulty("failure.step")
def labels_from_one():
    x, y = classes()
    return setup(mlp(4, 3), batches(x, y + 1), nn.CrossEntropyLoss())


@faulty("failure.step")
def too_many_features():
    x, y = regression(64, 5)
    return setup(mlp(4), batches(x, y))


@faulty("failure.step")
def channels_last_images():
    x = torch.rand(16, 8, 8, 3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    return setup(model, batches(x, torch.zeros(16).long()), nn.CrossEntropyLoss())


@faulty("failure.step")
def embedding_too_small():
    t = torch.randint(0, 12, (32, 5), generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 2))
    return setup(model, batches(t, torch.zeros(32).long()), nn.CrossEntropyLoss())


@faulty("loss.wrong-class-axis")
def classes_on_the_last_axis():
    torch.manual_seed(0)
    x = torch.randn(24, 5, 4)
    y = torch.randint(0, 5, (24, 5))
    return setup(nn.Linear(4, 5), batches(x, y), nn.CrossEntropyLoss())


@healthy
def classes_transposed():
    torch.manual_seed(0)
    x = torch.randn(24, 5, 4)
    y = torch.randint(0, 5, (24, 5))

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 5)

        def forward(self, inputs):
            return self.out(inputs).transpose(1, 2)

    return setup(Tagger(), batches(x, y), nn.CrossEntropyLoss())


@healthy
def segmentation():
    torch.manual_seed(0)
    x = torch.rand(8, 3, 8, 8)
    y = (x.sum(1) > 1.5).long()
    return setup(nn.Conv2d(3, 2, 3, padding=1), batches(x, y, 4), nn.CrossEntropyLoss())


@healthy
def double_precision_everywhere():
    x, y = regression()
    return setup(mlp().double(), batches(x.double(), y.double()))


@faulty("data.batch-edited")
def noise_written_into_the_batch():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        inputs += 0.1 * torch.randn_like(inputs)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@healthy
def noise_written_into_a_fresh_batch():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        inputs += 0.1 * torch.randn_like(inputs)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), DataLoader(TensorDataset(x, y), 16), step=step)
