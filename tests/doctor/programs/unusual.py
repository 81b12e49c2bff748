"""Healthy programs in unusual styles."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.data import DataLoader, TensorDataset

from tests.doctor.programs import batches, classes, healthy, mlp, regression, setup


@healthy
def wasserstein_gan_with_penalty():
    torch.manual_seed(0)
    generator, critic = mlp(2, 2), mlp(2, 1)
    og, oc = (torch.optim.Adam(net.parameters(), 1e-3, betas=(0.0, 0.9)) for net in (generator, critic))

    def step(model, real, loss_fn, optimizer):
        for _ in range(2):
            fake = model["g"](torch.randn(16, 2)).detach()
            mix = (0.5 * real + 0.5 * fake).requires_grad_()
            (slope,) = torch.autograd.grad(model["c"](mix).sum(), mix, create_graph=True)
            critic_loss = model["c"](fake).mean() - model["c"](real).mean() + 10 * (slope.norm(2, 1) - 1).pow(2).mean()
            oc.zero_grad()
            critic_loss.backward()
            oc.step()
        og.zero_grad()
        loss = -model["c"](model["g"](torch.randn(16, 2))).mean()
        loss.backward()
        og.step()
        return loss

    model = nn.ModuleDict({"g": generator, "c": critic})
    return setup(model, [torch.randn(16, 2) for _ in range(4)], optimizer=og, optimizers=[og, oc], step=step)


@healthy
def gan_as_tuples():
    torch.manual_seed(0)
    g, d = mlp(2, 1), nn.Sequential(mlp(1, 1), nn.Sigmoid())
    og, od = torch.optim.SGD(g.parameters(), 0.01), torch.optim.SGD(d.parameters(), 0.01)

    def train(model, loader, loss_fn, optimizer):
        for real, _ in loader:
            fake = g(torch.randn(len(real), 2))
            od.zero_grad()
            real_loss = loss_fn(d(real), torch.ones(len(real), 1))
            fake_loss = loss_fn(d(fake.detach()), torch.zeros(len(real), 1))
            real_loss.backward()
            fake_loss.backward()
            od.step()
            og.zero_grad()
            loss_fn(d(fake), torch.ones(len(real), 1)).backward()
            og.step()

    model = nn.ModuleList([g, d])
    loader = [(torch.randn(16, 1), torch.zeros(16)) for _ in range(4)]
    return setup(model, loader, nn.BCELoss(), og, optimizers=[og, od], train=train, step=None)


@healthy
def bootstrap_your_own_latent():
    torch.manual_seed(0)
    online, predictor = mlp(4, 8), nn.Linear(8, 8)
    target = copy.deepcopy(online)
    model = nn.ModuleDict({"online": online, "predictor": predictor, "target": target})
    optimizer = torch.optim.Adam([*online.parameters(), *predictor.parameters()], 1e-3)

    def step(model, batch, loss_fn, optimizer):
        x, _ = batch
        a, b = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
        with torch.no_grad():
            goal = F.normalize(model["target"](b), dim=1)
        loss = (2 - 2 * (F.normalize(model["predictor"](model["online"](a)), dim=1) * goal).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for t, o in zip(model["target"].parameters(), model["online"].parameters(), strict=True):
                t.mul_(0.9).add_(o, alpha=0.1)
        return loss

    x, y = regression()
    return setup(model, batches(x, y), optimizer=optimizer, step=step)


@healthy
def simsiam_with_detach():
    torch.manual_seed(0)

    class Sim(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.predictor = mlp(4, 8), nn.Linear(8, 8)

        def forward(self, x):
            a, b = self.encoder(x), self.encoder(x + 0.1)
            return self.predictor(a), self.predictor(b), a.detach(), b.detach()

    def loss_fn(out, _label):
        p1, p2, z1, z2 = out
        return -(F.cosine_similarity(p1, z2).mean() + F.cosine_similarity(p2, z1).mean()) / 2

    x, y = regression()
    return setup(Sim(), batches(x, y), loss_fn)


@healthy
def info_nce_in_the_loss():
    def loss_fn(out, _label):
        z = F.normalize(out, dim=1)
        logits = z @ z.roll(1, 0).T / 0.1
        return F.cross_entropy(logits, torch.arange(len(z)))

    x, y = regression()
    return setup(mlp(4, 8), batches(x, y), loss_fn)


@healthy
def triplets():
    torch.manual_seed(0)
    x = torch.randn(48, 3, 4)

    class Triplet(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(4, 3)

        def forward(self, x):
            return self.net(x[:, 0]), self.net(x[:, 1]), self.net(x[:, 2])

    loss = nn.TripletMarginLoss()
    return setup(Triplet(), batches(x, torch.zeros(48)), lambda out, _label: loss(*out))


@healthy
def several_tasks():
    x, y = regression()
    _, c = classes()

    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.value, self.kind = nn.Linear(4, 16), nn.Linear(16, 1), nn.Linear(16, 3)

        def forward(self, x):
            h = torch.relu(self.body(x))
            return {"value": self.value(h), "kind": self.kind(h)}

    def loss_fn(out, label):
        return F.mse_loss(out["value"], label[:, :1]) + 0.3 * F.cross_entropy(out["kind"], label[:, 1].long())

    return setup(Tasks(), batches(x, torch.cat([y, c.unsqueeze(1).float()], 1)), loss_fn)


@healthy
def experts_with_hard_routing():
    x, y = regression()

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 1) for _ in range(3))

        def forward(self, x):
            weights = F.softmax(self.gate(x), 1)
            chosen = weights.argmax(1)
            out = x.new_zeros(len(x), 1)
            for k, expert in enumerate(self.experts):
                rows = chosen == k
                if rows.any():
                    out[rows] = weights[rows, k : k + 1] * expert(x[rows])
            return out

    return setup(Experts(), batches(x, y))


@healthy
def meta_learning():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        fast = dict(model.named_parameters())
        inner = loss_fn(functional_call(model, fast, (inputs[:8],)), labels[:8])
        gradients = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), gradients, strict=True)}
        loss = loss_fn(functional_call(model, fast, (inputs[8:],)), labels[8:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@healthy
def physics_informed():
    torch.manual_seed(0)

    def step(model, batch, loss_fn, optimizer):
        t = batch[0].clone().requires_grad_()
        u = model(t)
        (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        loss = (slope + u).pow(2).mean() + (model(torch.zeros(1, 1)) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    t = torch.rand(64, 1)
    return setup(mlp(1), batches(t, t), step=step)


@healthy
def actor_and_critic():
    torch.manual_seed(0)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor, self.critic = mlp(3, 2), mlp(3, 1)

        def forward(self, s):
            return self.actor(s), self.critic(s)

    def step(model, batch, loss_fn, optimizer):
        state, best = batch
        logits, value = model(state)
        policy = torch.distributions.Categorical(logits=logits)
        action = policy.sample()
        reward = (action == best).float()
        advantage = reward - value.squeeze(1).detach()
        loss = -(policy.log_prob(action) * advantage).mean() + F.mse_loss(value.squeeze(1), reward)
        loss = loss - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    s = torch.randn(64, 3)
    return setup(Both(), batches(s, (s[:, 0] > 0).long()), step=step)


@healthy
def soft_actor_critic():
    torch.manual_seed(0)
    policy, q = mlp(3, 2), mlp(4, 1)
    target = copy.deepcopy(q).requires_grad_(False)
    temperature = torch.zeros(1, requires_grad=True)
    op, oq, ot = (torch.optim.Adam(p, 1e-3) for p in (policy.parameters(), q.parameters(), [temperature]))
    model = nn.ModuleDict({"policy": policy, "q": q, "target": target})

    def act(state):
        mean, spread = policy(state).chunk(2, 1)
        normal = torch.distributions.Normal(mean, F.softplus(spread) + 1e-3)
        action = normal.rsample()
        return action, normal.log_prob(action)

    def step(model, batch, loss_fn, optimizer):
        state, reward = batch
        with torch.no_grad():
            action, log_p = act(state)
            goal = reward + 0.9 * (target(torch.cat([state, action], 1)) - temperature.exp() * log_p)
        q_loss = F.mse_loss(q(torch.cat([state, action], 1)), goal)
        oq.zero_grad()
        q_loss.backward()
        oq.step()
        action, log_p = act(state)
        loss = (temperature.exp().detach() * log_p - q(torch.cat([state, action], 1))).mean()
        op.zero_grad()
        loss.backward()
        op.step()
        t_loss = -(temperature * (log_p.detach() - 1)).mean()
        ot.zero_grad()
        t_loss.backward()
        ot.step()
        return loss

    s = torch.randn(64, 3)
    return setup(model, batches(s, s[:, :1]), optimizer=op, optimizers=[op, oq, ot], step=step)


@healthy
def vector_quantized():
    torch.manual_seed(0)
    x, _ = regression()

    class Vq(nn.Module):
        def __init__(self):
            super().__init__()
            self.e, self.codes, self.d = nn.Linear(4, 2), nn.Embedding(8, 2), nn.Linear(2, 4)

        def forward(self, x):
            z = self.e(x)
            q = self.codes(torch.cdist(z, self.codes.weight).argmin(1))
            commit = F.mse_loss(z, q.detach()) + F.mse_loss(q, z.detach())
            return self.d(z + (q - z).detach()), commit

    return setup(Vq(), batches(x, x), lambda out, label: F.mse_loss(out[0], label) + out[1])


@healthy
def diffusion_noise_prediction():
    x, _ = regression()

    def step(model, batch, loss_fn, optimizer):
        clean = batch[0]
        level, noise = torch.rand(len(clean), 1), torch.randn_like(clean)
        noisy = (1 - level).sqrt() * clean + level.sqrt() * noise
        loss = loss_fn(model(torch.cat([noisy, level], 1)), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(5, 4), batches(x, x), step=step)


@healthy
def language_model_with_causal_mask():
    torch.manual_seed(0)
    t = torch.randint(0, 11, (32, 9))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.pos = nn.Embedding(11, 8), nn.Embedding(8, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
            self.body, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(8, 11, bias=False)
            self.out.weight = self.emb.weight

        def forward(self, t):
            mask = nn.Transformer.generate_square_subsequent_mask(t.shape[1])
            h = self.emb(t) + self.pos(torch.arange(t.shape[1]))
            return self.out(self.body(h, mask=mask, is_causal=True))

    def loss_fn(out, label):
        return F.cross_entropy(out.flatten(0, 1), label.flatten())

    model = Gpt()
    return setup(model, batches(t[:, :-1], t[:, 1:]), loss_fn, torch.optim.AdamW(model.parameters(), 1e-3))


@healthy
def spectral_and_weight_norm():
    x, y = regression()
    model = nn.Sequential(spectral_norm(nn.Linear(4, 8)), nn.ReLU(), weight_norm(nn.Linear(8, 1)))
    return setup(model, batches(x, y))


@healthy
def ctc_loss():
    torch.manual_seed(0)
    x = torch.randn(24, 10, 4)
    y = torch.randint(1, 5, (24, 3))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 5)

        def forward(self, x):
            return F.log_softmax(self.out(self.rnn(x)[0]), -1).transpose(0, 1)

    def loss_fn(out, label):
        n = label.shape[0]
        return F.ctc_loss(out, label, torch.full((n,), 10), torch.full((n,), 3))

    return setup(Net(), batches(x, y, 8), loss_fn)


@healthy
def focal_and_dice():
    x, y = classes()

    def loss_fn(out, label):
        log_p = F.log_softmax(out, 1)
        p = log_p.exp()
        picked = log_p.gather(1, label[:, None]).squeeze(1)
        focal = -((1 - picked.exp()) ** 2 * picked).mean()
        one = F.one_hot(label, 3).float()
        return focal + 1 - 2 * (p * one).sum() / (p.sum() + one.sum())

    return setup(mlp(4, 3), batches(x, y), loss_fn)


@healthy
def gaussian_likelihood():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(4, 2)

        def forward(self, x):
            mean, log_var = self.net(x).chunk(2, 1)
            return mean, log_var.exp()

    return setup(Net(), batches(x, y), lambda out, label: F.gaussian_nll_loss(out[0], label, out[1]))


@healthy
def poisson_counts():
    x, y = regression()
    return setup(mlp(), batches(x, torch.poisson(y.abs())), nn.PoissonNLLLoss())


@healthy
def l_bfgs():
    x, y = regression()
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def train(model, loader, loss_fn, optimizer, epochs=2):
        for _ in range(epochs):
            for inputs, labels in loader:

                def closure(inputs=inputs, labels=labels):
                    optimizer.zero_grad()
                    loss = loss_fn(model(inputs), labels)
                    loss.backward()
                    return loss

                optimizer.step(closure)

    return setup(model, [(x, y)], optimizer=optimizer, train=train)


@healthy
def layer_groups_and_frozen_embedding():
    t = torch.randint(0, 20, (48, 5), generator=torch.Generator().manual_seed(0))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.out = nn.Embedding.from_pretrained(torch.randn(20, 8), freeze=True), nn.Linear(8, 2)

        def forward(self, t):
            return self.out(self.emb(t).mean(1))

    model = Net()
    groups = [{"params": [model.out.weight], "weight_decay": 0.01}, {"params": [model.out.bias], "weight_decay": 0.0}]
    return setup(model, batches(t, t[:, 0] % 2), nn.CrossEntropyLoss(), torch.optim.AdamW(groups, lr=0.01))


@healthy
def progressive_unfreezing():
    x, y = regression()
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)

    def train(model, loader, loss_fn, optimizer, epochs=2):
        for epoch in range(epochs):
            if epoch == 1:
                model[0].requires_grad_(True)
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()

    return setup(model, batches(x, y), optimizer=optimizer, train=train)


@healthy
def nested_optimizer_class():
    x, y = regression()

    class Plain(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.add_(p.grad.sign(), alpha=-group["lr"])

    model = mlp()
    return setup(model, batches(x, y), optimizer=Plain(model.parameters(), 0.01))


@healthy
def step_that_returns_a_number():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return {"loss": loss.item(), "n": len(batch[0])}

    return setup(mlp(), batches(x, y), step=step)


@healthy
def image_classifier():
    torch.manual_seed(0)
    x = torch.rand(64, 1, 12, 12)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(200, 10),
    )
    loader = DataLoader(TensorDataset(x, torch.arange(64) % 10), 16, shuffle=True)
    return setup(model, loader, nn.CrossEntropyLoss(label_smoothing=0.1), torch.optim.AdamW(model.parameters(), 1e-3))


@healthy
def residual_network():
    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.a, self.b = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.Conv2d(c, c, 3, padding=1, bias=False)
            self.na, self.nb, self.relu = nn.BatchNorm2d(c), nn.BatchNorm2d(c), nn.ReLU(inplace=True)

        def forward(self, x):
            identity = x
            out = self.nb(self.b(self.relu(self.na(self.a(x)))))
            out += identity
            return self.relu(out)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), Block(8), Block(8),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))  # fmt: skip
    x = torch.randn(32, 3, 10, 10)
    return setup(model, batches(x, torch.arange(32) % 4), nn.CrossEntropyLoss())


@healthy
def compiled_eagerly():
    x, y = regression()
    return setup(torch.compile(mlp(), backend="eager"), batches(x, y))


@healthy
def data_parallel_wrapper():
    x, y = regression()
    return setup(nn.DataParallel(mlp()), batches(x, y))
