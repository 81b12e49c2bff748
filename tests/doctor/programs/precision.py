"""Lower precision and gradient scaling."""

import torch
from torch import nn

from tests.doctor.programs import batches, faulty, healthy, mlp, regression, setup


def _scaled(body, scale=2.0**16, lr=0.05):
    x, y = regression()
    model = mlp()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr), torch.amp.GradScaler("cpu", init_scale=scale)

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        body(model, loss, optimizer, scaler)
        return loss

    return setup(model, batches(x, y), optimizer=optimizer, step=step, scaler=scaler)


@faulty("amp.clip-before-unscale")
def values_clipped_while_scaled():
    def body(model, loss, optimizer, scaler):
        scaler.scale(loss).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()

    return _scaled(body)


@faulty("amp.scaler-bypassed")
def scaled_but_stepped_directly():
    def body(model, loss, optimizer, scaler):
        scaler.scale(loss).backward()
        optimizer.step()
        scaler.update()

    return _scaled(body, scale=1024.0, lr=1e-6)


@healthy
def scaled_and_unscaled():
    def body(model, loss, optimizer, scaler):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()

    return _scaled(body)


@healthy
def scaler_disabled():
    x, y = regression()
    model = mlp()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.05), torch.amp.GradScaler("cpu", enabled=False)

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return setup(model, batches(x, y), optimizer=optimizer, step=step, scaler=scaler)


@healthy
def scaled_by_hand():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        (loss * 128).backward()
        for p in model.parameters():
            p.grad /= 128
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@faulty("amp.autocast-around-steps")
def one_autocast_for_the_loop():
    x, y = regression()

    def train(model, loader, loss_fn, optimizer):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()

    return setup(mlp(), batches(x, y), train=train)


@healthy
def autocast_in_bfloat16():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@healthy
def whole_step_under_autocast():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            optimizer.zero_grad()
            loss = loss_fn(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@faulty("amp.no-scaler")
def float16_without_scaling():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(batch[0]).float(), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@faulty("optimizer.half-weights")
def float16_weights():
    x, y = regression()
    model = mlp().half()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    return setup(model, batches(x.half(), y.half()), optimizer=optimizer)


@faulty("optimizer.update-vanishes")
def bfloat16_weights_and_tiny_steps():
    x, y = regression()
    model = mlp().bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), 1e-5)
    return setup(model, batches(x.bfloat16(), y.bfloat16()), optimizer=optimizer)


@healthy
def bfloat16_weights_and_large_steps():
    x, y = regression()
    model = mlp().bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    return setup(model, batches(x.bfloat16(), y.bfloat16()), optimizer=optimizer)


@faulty("optimizer.update-vanishes")
def learning_rate_of_nothing():
    x, y = regression()
    model = mlp()
    return setup(model, batches(x, y), optimizer=torch.optim.SGD(model.parameters(), 1e-14))


@faulty("amp.no-scaler-update")
def scaler_never_updated():
    x, y = regression()
    model = mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    others = [torch.optim.SGD(model.parameters(), 0.05) for _ in range(40)]
    count = [0]

    def step(model, batch, loss_fn, optimizer):
        optimizer = others[count[0] % 40]
        count[0] += 1
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        return loss

    return setup(model, batches(x, y), optimizer=others[0], step=step, scaler=scaler)


@faulty("amp.every-step-skipped")
def scaler_hides_permanent_nan():
    def body(model, loss, optimizer, scaler):
        scaler.scale(loss + 0 * torch.log(torch.zeros(1) - 1).sum() * loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return _scaled(body)


@faulty("scheduler.on-skipped-update")
def schedule_runs_on_while_skipping():
    x, y = regression()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=50)

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]) * 10, batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        return loss

    return setup(model, batches(x, y), optimizer=optimizer, step=step, scaler=scaler, scheduler=scheduler)
