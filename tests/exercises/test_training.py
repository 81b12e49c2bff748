"""Lesson 05's exercises: right answers in several forms pass, each wrong one meets its own message."""

from __future__ import annotations

import copy
import io
import math
import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.seeding import derive, stream
from course_utils.training import fit
from tests.exercises.harness import Answers, WrongAnswers, exercise_tests

RIGHT: Answers = {}
WRONG: WrongAnswers = {}


# --- two-losses: scores (N, C), labels (N,), even_scores (N, 1), is_even (N,) bool --------------------------------


def _nll_and_softplus(scores: Tensor, labels: Tensor, even_scores: Tensor, is_even: Tensor) -> tuple:
    surprise = -scores.log_softmax(1).gather(1, labels[:, None]).mean()
    sign = torch.where(is_even, -1.0, 1.0)
    return surprise, F.softplus(sign * even_scores[:, 0]).mean()


def _modules(scores: Tensor, labels: Tensor, even_scores: Tensor, is_even: Tensor) -> tuple:
    return nn.CrossEntropyLoss()(scores, labels), nn.BCEWithLogitsLoss()(even_scores, is_even[:, None].to(even_scores))


def _ce(scores: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(scores, labels, **options)


def _bce(scores: Tensor, is_even: Tensor, **options: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores.squeeze(1), is_even.float(), **options)


def _bce_by_hand(scores: Tensor, truth: Tensor) -> Tensor:
    return (F.softplus(scores) - truth * scores).mean()


RIGHT["training.two-losses"] = {
    "a list": lambda s, y, e, t: [_ce(s, y), _bce(e, t)],
    "written out": _nll_and_softplus,
    "as modules": _modules,
    "two-class softmax for the even head": lambda s, y, e, t: (
        F.nll_loss(s.log_softmax(1), y),
        F.cross_entropy(torch.cat([torch.zeros_like(e), e], 1), t.long()),
    ),
}
WRONG["training.two-losses"] = {
    "softmax first": (lambda s, y, e, t: (_ce(s.softmax(1), y), _bce(e, t)), "applied it twice"),
    "sum": (lambda s, y, e, t: (_ce(s, y, reduction="sum"), _bce(e, t)), "sum over the batch"),
    "one loss per example": (lambda s, y, e, t: (_ce(s, y, reduction="none"), _bce(e, t)), "One loss per example"),
    "sigmoid first": (lambda s, y, e, t: (_ce(s, y), _bce(e.sigmoid(), t)), "applies sigmoid itself"),
    "broadcast": (lambda s, y, e, t: (_ce(s, y), _bce_by_hand(e, t.float())), "became (N, N)"),
    "shapes differ": (
        lambda s, y, e, t: (_ce(s, y), F.binary_cross_entropy_with_logits(e, t.float())),
        "Bring both to one shape",
    ),
    "bool labels": (
        lambda s, y, e, t: (_ce(s, y), F.binary_cross_entropy(e.squeeze(1).sigmoid(), t)),
        "wants float labels",
    ),
    "bool labels with logits": (
        lambda s, y, e, t: (_ce(s, y), F.binary_cross_entropy_with_logits(e.squeeze(1), t)),
        "wants float labels",
    ),
    "labels swapped": (lambda s, y, e, t: (_ce(s, y), _bce(e, ~t)), "labels are swapped"),
    "numbers": (lambda s, y, e, t: (_ce(s, y).detach(), _bce(e, t).detach()), "item() is for the log"),
    "sigmoid and log": (
        lambda s, y, e, t: (_ce(s, y), F.binary_cross_entropy(e.squeeze(1).sigmoid(), t.float())),
        "cut the loss off at 100",
    ),
    "only one": (lambda s, y, e, t: _ce(s, y), "returns a pair"),
}


# --- train-epoch --------------------------------------------------------------------------------------------------


def _epoch(
    *, mode: bool = True, zero: str = "before", weigh: bool = True, number: bool = True, mean: str = "examples"
) -> Any:
    """Build a training epoch with one habit changed."""

    def train_epoch(model, batches, loss_fn, optimizer):
        if mode:
            model.train()
        total, count, n_batches, loss = 0.0, 0, 0, torch.zeros(())
        for x, y in batches:
            if zero == "before":
                optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            if zero == "between":
                optimizer.zero_grad()
            optimizer.step()
            if zero == "after":
                optimizer.zero_grad(set_to_none=False)
            value = loss.item() if number else loss
            total, count, n_batches = total + value * (len(x) if weigh else 1), count + len(x), n_batches + 1
        return {"examples": total / count, "batches": total / n_batches, "last": loss.item(), "sum": total}[mean]

    return train_epoch


def _epoch_with_none_and_lists(model, batches, loss_fn, optimizer):
    model.train(True)
    losses, sizes = [], []
    for x, y in batches:
        for parameter in model.parameters():
            parameter.grad = None
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        sizes.append(x.shape[0])
    return float(np.average(losses, weights=sizes))


def _epoch_step_first(model, batches, loss_fn, optimizer):
    model.train()
    total, count = 0.0, 0
    for x, y in batches:
        optimizer.zero_grad()
        optimizer.step()
        loss = loss_fn(model(x), y)
        loss.backward()
        total, count = total + loss.item() * len(x), count + len(x)
    return total / count


def _epoch_with_closures(model, batches, loss_fn, optimizer):
    model.train()
    total, count = 0.0, 0
    for x, y in batches:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            return loss

        total, count = total + optimizer.step(closure).item() * len(x), count + len(x)
    return total / count


RIGHT["training.train-epoch"] = {
    "with closures": _epoch_with_closures,
    "zero_grad at the end": _epoch(zero="after"),
    "grads set to None, numpy average": _epoch_with_none_and_lists,
}
WRONG["training.train-epoch"] = {
    "no zero_grad": (_epoch(zero="never"), "backward adds"),
    "zero_grad between backward and step": (_epoch(zero="between"), "did not move"),
    "step before backward": (_epoch_step_first, "did not move"),
    "stays in eval mode": (_epoch(mode=False), "model.train() before the loop"),
    "mean of batch means": (_epoch(weigh=False, mean="batches"), "mean of the batch means"),
    "returns a tensor": (_epoch(number=False), "keeps its whole graph"),
    "last batch": (_epoch(mean="last"), "last batch alone"),
    "sum over examples": (_epoch(mean="sum"), "Divide by their number"),
    "divided by batches": (_epoch(mean="batches"), "not by the number of batches"),
    "batch means over examples": (_epoch(weigh=False), "multiply it by len(x)"),
}


# --- evaluate -----------------------------------------------------------------------------------------------------


def _evaluation(
    *, eval_mode: bool = True, grad: str = "block", back: str = "each", weigh: bool = True, scale: float = 1.0
) -> Any:
    """Build an evaluation with one habit changed."""

    def evaluate(model, batches, loss_fn):
        modes = [module.training for module in model.modules()]
        if eval_mode:
            model.eval()
        total, hits, count = 0.0, 0.0, 0
        if grad == "off":
            torch.set_grad_enabled(False)
        with torch.no_grad() if grad == "block" else torch.autograd.profiler.record_function("nothing"):
            for x, y in batches:
                logits = model(x)
                n = len(x) if weigh else 1
                total += loss_fn(logits, y).item() * n
                hits += (logits.argmax(1) == y).double().mean().item() * n
                count += n
        if back == "each":
            for module, mode in zip(model.modules(), modes, strict=True):
                module.training = mode
        elif back == "train":
            model.train()
        elif back == "root":
            model.train(modes[0])
        return total / count, hits / count * scale

    return evaluate


@torch.inference_mode()
def _evaluate_whole(model, batches, loss_fn):
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    training = {name for name, module in model.named_modules() if module.training}
    try:
        logits = model.eval()(x)
        return float(loss_fn(logits, y)), int((logits.max(1).indices == y).sum()) / len(y)
    finally:
        for name, module in model.named_modules():
            module.training = name in training


def _evaluate_a_copy(model, batches, loss_fn):
    honest = copy.deepcopy(model)
    honest.eval().requires_grad_(False)
    outputs = [(honest(x), y) for x, y in batches]
    n = sum(len(y) for _, y in outputs)
    loss = sum(loss_fn(z, y).item() * len(y) for z, y in outputs) / n
    return loss, sum((z.argmax(1) == y).sum().item() for z, y in outputs) / n


RIGHT["training.evaluate"] = {
    "a list": lambda *arguments: list(_evaluation()(*arguments)),
    "all at once, inference mode": _evaluate_whole,
    "on a copy of the model": _evaluate_a_copy,
}
WRONG["training.evaluate"] = {
    "no eval": (_evaluation(eval_mode=False), "model.eval() before the batches"),
    "no no_grad": (_evaluation(grad="on"), "eval mode doesn't stop the recording"),
    "grad switched off for good": (_evaluation(grad="off"), "Use torch.no_grad() as a block"),
    "left in eval": (_evaluation(back="none"), "train without dropout"),
    "train() at the end": (_evaluation(back="train"), "Note each module's .training"),
    "root's mode for all": (_evaluation(back="root"), "Note each module's .training"),
    "mean of batch means": (_evaluation(weigh=False), "mean of the batch means"),
    "percent": (_evaluation(scale=100.0), "in percent"),
    "tensors": (
        lambda *arguments: tuple(torch.tensor(value) for value in _evaluation()(*arguments)),
        "a tuple of a tensor of shape ()",
    ),
}


# --- adamw-step ---------------------------------------------------------------------------------------------------


def _adamw(*, coupled: bool = False, fair: bool = True, decay_lr: bool = True, eps_inside: bool = False) -> Any:
    def adamw_step(w, grad, m, v, t, lr, beta1, beta2, eps, decay):
        if coupled:
            grad = grad + decay * w
        m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad**2
        a, b = (m / (1 - beta1**t), v / (1 - beta2**t)) if fair else (m, v)
        below = (b + eps).sqrt() if eps_inside else b.sqrt() + eps
        return w - (0 if coupled else (lr if decay_lr else 1) * decay * w) - lr * a / below, m, v

    return adamw_step


def _adamw_with_lerp(w, grad, m, v, t, lr, beta1, beta2, eps, decay):
    m = torch.lerp(m, grad, 1 - beta1)
    v = torch.lerp(v, grad.square(), 1 - beta2)
    step = lr / (1 - beta1**t)
    return w.mul(1 - lr * decay).sub(step * m / (v.sqrt() / math.sqrt(1 - beta2**t) + eps)), m, v


def _adamw_in_place_on_copies(w, grad, m, v, t, lr, beta1, beta2, eps, decay):
    w, m, v = w.clone(), m.clone(), v.clone()
    m.mul_(beta1).add_(grad, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    w -= lr * decay * w
    w -= lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)) ** 0.5 + eps)
    return w, m, v


def _adamw_in_place(w, grad, m, v, t, lr, beta1, beta2, eps, decay):
    m.mul_(beta1).add_(grad, alpha=1 - beta1)
    return _adamw()(w, grad, m, v, t, lr, beta1, beta2, eps, decay)


def _adamw_decay_last(w, grad, m, v, t, lr, beta1, beta2, eps, decay):
    w, m, v = _adamw()(w, grad, m, v, t, lr, beta1, beta2, eps, 0.0)
    return w * (1 - lr * decay), m, v


def _adamw_of_torch(w, grad, m, v, t, lr, beta1, beta2, eps, decay):
    weight = nn.Parameter(w.clone())
    optimizer = torch.optim.AdamW([weight], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    memory = {"step": torch.tensor(float(t - 1)), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    optimizer.state[weight] = memory
    weight.grad = grad.clone()
    optimizer.step()
    return [weight.detach(), memory["exp_avg"], memory["exp_avg_sq"]]


RIGHT["training.adamw-step"] = {
    "lerp, folded correction": _adamw_with_lerp,
    "on copies": _adamw_in_place_on_copies,
    "torch's own, as a list": _adamw_of_torch,
}
WRONG["training.adamw-step"] = {
    "L2 in the gradient": (_adamw(coupled=True), "Adam with L2, not AdamW"),
    "no bias correction": (_adamw(fair=False), "too small at first"),
    "decay without lr": (_adamw(decay_lr=False), "scaled by lr"),
    "eps inside the root": (_adamw(eps_inside=True), "outside the square root"),
    "decay after the move": (_adamw_decay_last, "before the move"),
    "no decay": (lambda w, g, m, v, t, decay, **k: _adamw()(w, g, m, v, t, decay=0.0, **k), "decay is missing"),
    "in place": (_adamw_in_place, "changed an input"),
    "betas swapped": (
        lambda w, g, m, v, t, beta1, beta2, **k: _adamw()(w, g, m, v, t, beta1=1 - beta1, beta2=beta2, **k),
        "weights are swapped",
    ),
}


# --- warmup-cosine ------------------------------------------------------------------------------------------------


def _schedule(*, first: int = 1, origin: bool = True, cut: bool = True, shape: str = "cosine") -> Any:
    def warmup_cosine(step, warmup, total):
        if step < warmup:
            return (step + first) / warmup
        done = (step - (warmup if origin else 0)) / (total - (warmup if origin else 0))
        done = min(done, 1.0) if cut else done
        return {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "line": 1 - done, "full": math.cos(math.pi * done)}[
            shape
        ]

    return warmup_cosine


def _schedule_with_numpy(step, warmup, total):
    up = 1.0 if warmup == 0 else np.clip((step + 1) / warmup, 0, 1)
    down = np.cos(np.pi / 2 * np.clip((step - warmup) / (total - warmup), 0, 1)) ** 2
    return np.float64(up * down)


RIGHT["training.warmup-cosine"] = {
    "numpy, as a product": _schedule_with_numpy,
    "with early returns": lambda step, warmup, total: (
        0.0
        if step >= total
        else (step + 1) / warmup
        if step < warmup
        else math.cos(math.pi * (step - warmup) / (total - warmup) / 2) ** 2
    ),
}
WRONG["training.warmup-cosine"] = {
    "starts at 0": (_schedule(first=0), "wastes the first step"),
    "no warm-up": (lambda s, w, t: _schedule()(s + w, w, t), "warm-up is missing"),
    "jumps after warm-up": (_schedule(origin=False), "the rate jumps there"),
    "straight line": (_schedule(shape="line"), "straight line down"),
    "full cosine": (_schedule(shape="full"), "would turn negative"),
    "rises again": (_schedule(cut=False), "goes on rises again"),
    "tensor": (lambda s, w, t: torch.tensor(_schedule()(s, w, t)), "expected a Python number"),
    "numpy array": (lambda s, w, t: np.array(_schedule()(s, w, t)), "or return float(...)"),
    "divides by no warm-up": (
        lambda s, w, t: min((s + 1) / w, _schedule()(s, w, t) if s >= w else 1.0),
        "nothing to divide by",
    ),
}


# --- clip ---------------------------------------------------------------------------------------------------------


def _clip_by_hand(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = math.sqrt(sum(grad.square().sum().item() for grad in grads))
    for grad in grads:
        grad *= min(1.0, max_norm / norm)
    return norm


def _clip_new_tensors(parameters, max_norm):
    kept = [p for p in parameters if p.grad is not None]
    norm = torch.cat([p.grad.flatten() for p in kept]).norm()
    if norm > max_norm:
        for p in kept:
            p.grad = p.grad / norm * max_norm
    return norm


def _clip_each(parameters, max_norm):
    for p in parameters:
        if p.grad is not None:
            nn.utils.clip_grad_norm_([p], max_norm)
    return 0.0


def _clip_exhausted(parameters, max_norm):
    norm = sum(p.grad.square().sum() for p in parameters if p.grad is not None).sqrt()
    for p in parameters:
        p.grad *= max_norm / norm
    return norm


def _clip_always(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = torch.cat([grad.flatten() for grad in grads]).norm()
    for grad in grads:
        grad *= max_norm / norm
    return norm


def _clip_and_measure_after(parameters, max_norm):
    parameters = list(parameters)
    nn.utils.clip_grad_norm_(parameters, max_norm)
    return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm().item()


def _clip_none_forgotten(parameters, max_norm):
    parameters = list(parameters)
    norm = sum(p.grad.square().sum() for p in parameters).sqrt()
    for p in parameters:
        p.grad *= max_norm / norm
    return norm


RIGHT["training.clip"] = {
    "by hand": _clip_by_hand,
    "new tensors, a tensor back": _clip_new_tensors,
    "the library's": nn.utils.clip_grad_norm_,
}
WRONG["training.clip"] = {
    "each tensor by itself": (_clip_each, "clipped by its own norm"),
    "each element": (lambda p, n: nn.utils.clip_grad_value_(p, n) or 0.0, "Each number was cut off"),
    "generator used up": (_clip_exhausted, "once walked, it is empty"),
    "scales up": (_clip_always, "a ceiling, not a target"),
    "norm after": (_clip_and_measure_after, "norm after clipping"),
    "None forgotten": (_clip_none_forgotten, "Leave it out"),
    "largest element": (lambda p, n: nn.utils.clip_grad_norm_(p, n, norm_type=math.inf), "root of the sum"),
}


# --- early-stop ---------------------------------------------------------------------------------------------------


def _stopper(
    *, reset: bool = True, extra: int = 0, against: str = "best", ties: bool = False, last: bool = False
) -> Any:
    def early_stop(losses, patience):
        best, best_epoch, waited, previous = math.inf, 0, 0, math.inf
        for epoch, loss in enumerate(losses):
            reference = best if against == "best" else previous
            if loss < reference or (ties and loss == reference):
                waited = 0 if reset else waited
            else:
                waited += 1
            if loss < best:
                best, best_epoch = loss, epoch
            previous = loss
            if waited >= patience + extra:
                return epoch + 1, epoch if last else best_epoch
        return len(losses), best_epoch

    return early_stop


def _stop_by_slices(losses, patience):
    ran = len(losses)
    for end in range(1, len(losses) + 1):
        known = [(loss, i) for i, loss in enumerate(losses[:end]) if not math.isnan(loss)]
        if end - 1 - min(known)[1] >= patience:
            ran = end
            break
    return ran, min((loss, i) for i, loss in enumerate(losses[:ran]) if not math.isnan(loss))[1]


def _stop_with_not_worse(losses, patience):
    best, best_epoch, waited = math.inf, 0, 0
    for epoch, loss in enumerate(losses):
        if loss >= best:
            waited += 1
            if waited >= patience:
                return epoch + 1, best_epoch
        else:
            best, best_epoch, waited = loss, epoch, 0
    return len(losses), best_epoch


def _stop_but_peek(losses, patience):
    ran, _ = _stopper()(losses, patience)
    return ran, int(np.nanargmin(losses))


def _stop_by_numpy(losses, patience):
    kept = np.nan_to_num(np.asarray(losses), nan=math.inf)
    for ran in range(1, len(kept) + 1):
        best = np.argmin(kept[:ran])
        if ran - 1 - best >= patience:
            break
    return [ran, best]


RIGHT["training.early-stop"] = {
    "slices": _stop_by_slices,
    "another loop": _stopper(),
    "numpy's numbers in a list": _stop_by_numpy,
}
WRONG["training.early-stop"] = {
    "counts all": (_stopper(reset=False), "Only those in a row"),
    "one too late": (_stopper(extra=1), "One epoch too many"),
    "one too early": (_stopper(extra=-1), "One epoch too few"),
    "against the one before": (_stopper(against="previous"), "not with the one before"),
    "ties are fine": (_stopper(ties=True), "Only loss < best counts"),
    "nan passes": (_stop_with_not_worse, "comparison with nan is False"),
    "last as best": (_stopper(last=True), "not the last one"),
    "best of all": (_stop_but_peek, "one of those that ran"),
    "never stops": (lambda losses, patience: (len(losses), int(np.nanargmin(losses))), "It never stopped"),
}


# --- epoch-order --------------------------------------------------------------------------------------------------


def _order(generator: Any) -> Any:
    return lambda n, size, seed, epoch: list(torch.randperm(n, generator=generator(seed, epoch)).split(size))


def _order_with_numpy(n, batch_size, seed, epoch):
    order = torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(n))
    return [order[start : start + batch_size] for start in range(0, n, batch_size)]


def _order_with_python(n, batch_size, seed, epoch):
    order = list(range(n))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return [torch.tensor(order[start : start + batch_size]) for start in range(0, n, batch_size)]


def _order_globally(n, batch_size, seed, epoch):
    torch.manual_seed(derive(seed, epoch))
    return list(torch.randperm(n).split(batch_size))


_drawn = torch.Generator()

RIGHT["training.epoch-order"] = {
    "numpy": _order_with_numpy,
    "python": _order_with_python,
    "derived seed": _order(lambda s, e: torch.Generator().manual_seed(derive(s, "order", e))),
}
WRONG["training.epoch-order"] = {
    "same order in every epoch": (_order(lambda s, e: stream(s, "shuffle")), "epoch must go into"),
    "seed ignored": (_order(lambda s, e: stream(0, "shuffle", e)), "seed must go into"),
    "seed plus epoch": (_order(lambda s, e: torch.Generator().manual_seed(s + e)), "neighbouring runs share"),
    "global seed": (_order_globally, "torch.Generator of your own"),
    "one generator for ever": (_order(lambda s, e: _drawn), "make a new generator in each call"),
    "drops the last": (
        lambda n, b, s, e: list(torch.randperm(n, generator=stream(s, "x", e))[: n // b * b].split(b)),
        "short last batch is missing",
    ),
    "not shuffled": (lambda n, b, s, e: list(torch.arange(n).split(b)), "is shuffled"),
    "with repeats": (
        lambda n, b, s, e: list(torch.randint(0, n, (n,), generator=stream(s, "x", e)).split(b)),
        "draws without repeats",
    ),
}


# --- checkpoint ---------------------------------------------------------------------------------------------------


def _checkpoint(*, without: str = "", objects: bool = False, live: bool = True) -> type:
    """Build a checkpoint class that forgets one part."""

    class Checkpoint:
        def __init__(self, model, optimizer, scheduler):
            self.parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}

        def save(self, path, step):
            state = {name: part.state_dict() for name, part in self.parts.items() if name != without}
            if objects:
                state["scheduler"] = self.parts["model"]  # a whole module, pickled
                state["plan"] = self.parts["scheduler"].state_dict()
            torch.save({**state, "rng": torch.get_rng_state(), "step": step}, path)

        def load(self, path):
            state = torch.load(path, weights_only=not objects)
            for name, part in self.parts.items():
                if name != without:
                    part.load_state_dict(state["plan" if objects and name == "scheduler" else name])
            if without != "rng":
                torch.set_rng_state(state["rng"])
            return 0 if without == "step" else state["step"]

    return Checkpoint


class _ListCheckpoint:
    def __init__(self, *parts):
        self.parts = parts

    def save(self, path, step):
        buffer = io.BytesIO()
        torch.save([step, torch.random.get_rng_state(), *[part.state_dict() for part in self.parts]], buffer)
        path.write_bytes(buffer.getvalue())

    def load(self, path):
        step, rng, *states = torch.load(path)
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)
        torch.random.set_rng_state(rng)
        return step


RIGHT["training.checkpoint"] = {"a dict": _checkpoint(), "a list through a buffer": _ListCheckpoint}
WRONG["training.checkpoint"] = {
    "no optimizer": (_checkpoint(without="optimizer"), "AdamW remembers"),
    "no scheduler": (_checkpoint(without="scheduler"), "scheduler counts its steps"),
    "no rng": (_checkpoint(without="rng"), "Dropout draws"),
    "no model": (_checkpoint(without="model"), "model.state_dict() into the file"),
    "no step": (_checkpoint(without="step"), 'Put "step"'),
    "pickled objects": (_checkpoint(objects=True), "never the objects themselves"),
}


# --- first-bad-layer ----------------------------------------------------------------------------------------------


def _finder(
    *,
    test: Any = torch.isfinite,
    pick: int = 0,
    tidy: str = "finally",
    leaves: bool = False,
    blocks_first: bool = False,
) -> Any:
    def first_bad_layer(model, x):
        found, handles = [], []
        for name, layer in model.named_modules():
            if leaves and list(layer.children()):
                continue

            def note(_layer, _args, output, name=name):
                if not test(output).all():
                    found.append(name)

            handles.append(layer.register_forward_hook(note))
        try:
            model(x)
        finally:
            if tidy == "finally":
                for handle in handles:
                    handle.remove()
        if tidy == "after":
            for handle in handles:
                handle.remove()
        return found[pick] if found else None

    return first_bad_layer


def _tidy_only_on_success(model, x):
    found, handles = [], []
    for name, layer in model.named_modules():
        handles.append(
            layer.register_forward_hook(
                lambda _l, _i, out, name=name: found.append(name) if not torch.isfinite(out).all() else None
            )
        )
    model(x)
    for handle in handles:
        handle.remove()
    return found[0] if found else None


def _registration_order(model, x):
    bad = set()
    handles = [
        layer.register_forward_hook(lambda _l, _i, out, n=n: bad.add(n) if not torch.isfinite(out).all() else None)
        for n, layer in model.named_modules()
        if not list(layer.children())
    ]
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    return next((name for name, _ in model.named_modules() if name in bad), None)


def _stop_at_the_first(model, x):
    class Found(Exception):
        pass

    names = {layer: name for name, layer in model.named_modules()}

    def note(layer, _args, output):
        if bool((~output.isfinite()).any()):
            raise Found(names[layer])

    handles = [layer.register_forward_hook(note) for layer in model.modules()]
    try:
        with torch.no_grad():
            model(x)
    except Found as found:
        return str(found)
    finally:
        [handle.remove() for handle in handles]
    return None


def _child_after_child(model, x):
    for name, layer in model.named_children():
        x = layer(x)
        if not x.isfinite().all():
            return name
    return None


RIGHT["training.first-bad-layer"] = {"leaves only": _finder(leaves=True), "raises at the first": _stop_at_the_first}
WRONG["training.first-bad-layer"] = {
    "nan only": (_finder(test=lambda t: ~torch.isnan(t)), "Test with torch.isfinite"),
    "child after child": (_child_after_child, "order of registration is not the order of running"),
    "hooks stay": (_finder(tidy="never"), "register_forward_hook returns a handle"),
    "hooks stay after an error": (_tidy_only_on_success, "finally block"),
    "last one": (_finder(pick=-1), "whole model"),
    "last layer": (_finder(pick=-1, leaves=True), "appeared in an earlier layer"),
    "registration order": (_registration_order, "as they were registered"),
    "finds nothing": (lambda model, x: model(x) and None if x is None else None, "It found nothing"),
}


# --- clinic -------------------------------------------------------------------------------------------------------


def _clipped_step(order: str, clip: Any = nn.utils.clip_grad_norm_) -> Any:
    """Build a step from letters: z(ero), b(ackward), c(lip), s(tep)."""

    def train_step(model, x, y, optimizer, max_norm):
        for letter in order:
            if letter == "z":
                optimizer.zero_grad()
            elif letter == "b":
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            elif letter == "c":
                clip(model.parameters(), max_norm)
            else:
                optimizer.step()

    return train_step


def _clipped_by_autograd(model, x, y, optimizer, max_norm):
    parameters = list(model.parameters())
    grads = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
    norm = torch.cat([grad.flatten() for grad in grads]).norm()
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad * (max_norm / norm).clamp(max=1)
    optimizer.step()


RIGHT["training.clinic-clip"] = {
    "zero at the end of the last step": _clipped_step("zbcsz"),
    "with autograd.grad": _clipped_by_autograd,
}
WRONG["training.clinic-clip"] = {
    "after the step": (_clipped_step("zbsc"), "Clip between the two"),
    "before backward": (_clipped_step("zcbs"), "Clip between the two"),
    "each value": (_clipped_step("zbcs", nn.utils.clip_grad_value_), "all gradients together"),
    "no zero_grad": (_clipped_step("bcs"), "backward adds to what is there"),
    "always scaled": (_clipped_step("zbcs", _clip_always), "a ceiling"),
    "no step": (_clipped_step("zbc"), "zero_grad, backward, clip, step"),
}


def _modes(*, at: str = "epoch", eval_mode: bool = True, no_grad: bool = True) -> Any:
    def train(model, batches, held_out, optimizer, epochs):
        scores = []
        if at in ("start", "before validation"):
            model.train()
        for _ in range(epochs):
            if at == "epoch":
                model.train()
            for x, y in batches:
                if at == "batch":
                    model.train()
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            if eval_mode:
                model.eval()
            if at == "before validation":
                model.train()
            with torch.set_grad_enabled(not no_grad):
                scores.append((model(held_out[0]).argmax(1) == held_out[1]).float().mean().item())
            if at == "end":
                model.train()
        if at == "late":
            model.train()
        return scores

    return train


RIGHT["training.clinic-modes"] = {"in each batch": _modes(at="batch"), "after each validation": _modes(at="end")}
WRONG["training.clinic-modes"] = {
    "once at the start": (_modes(at="start"), "inside the epoch loop"),
    "after the last epoch": (_modes(at="late"), "inside the epoch loop"),
    "no eval at all": (_modes(eval_mode=False), "Don't drop eval()"),
    "train before validation": (_modes(at="before validation"), "Don't drop eval()"),
    "no no_grad": (_modes(no_grad=False), "Keep torch.no_grad()"),
}


def _cycle(*, where: str = "batch", total: str = "steps", note: str = "before", schedule: bool = True) -> Any:
    def train(model, batches, epochs, peak):
        optimizer = torch.optim.SGD(model.parameters(), lr=peak)
        steps = epochs * len(batches) if total == "steps" else epochs
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peak, total_steps=steps)
        used, moved = [], 0
        for _ in range(epochs):
            for x, y in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                rate = optimizer.param_groups[0]["lr"] if schedule else peak
                optimizer.step()
                if where == "batch" and moved < steps - 1:
                    scheduler.step()
                    moved += 1
                used.append(rate if note == "before" else optimizer.param_groups[0]["lr"])
            if where == "epoch" and moved < steps - 1:
                scheduler.step()
                moved += 1
        return used

    return train


def _cycle_with_epochs(model, batches, epochs, peak):
    optimizer = torch.optim.SGD(model.parameters(), lr=peak)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peak, epochs=epochs, steps_per_epoch=len(batches))
    used = []
    for _ in range(epochs):
        for x, y in batches:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            used += scheduler.get_last_lr()
            scheduler.step()
    return used


def _cycle_by_fit(model, batches, epochs, peak):
    optimizer = torch.optim.SGD(model.parameters(), lr=peak)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=epochs * len(batches))
    return fit(model, F.cross_entropy, optimizer, batches, epochs=epochs, step_schedule=schedule).lrs


RIGHT["training.clinic-onecycle"] = {
    "epochs and steps_per_epoch": _cycle_with_epochs,
    "rate noted first": _cycle(),
    "the course's fit, a tuple": _cycle_by_fit,
}
WRONG["training.clinic-onecycle"] = {
    "per epoch": (_cycle(where="epoch"), "yet the scheduler moves once per epoch"),
    "per epoch with epochs as total": (_cycle(where="epoch", total="epochs"), "a staircase"),
    "noted too late": (_cycle(note="after"), "rate is that of the next step"),
    "no schedule": (_cycle(schedule=False), "stays at the peak"),
    "never moves": (_cycle(where="never"), "scheduler never moves"),
}


def _keeper(keep: Any, *, load: bool = True, when: str = "best") -> Any:
    def train_and_keep_best(model, train_one_epoch, validate, epochs):
        best_loss, best = math.inf, None
        for epoch in range(epochs):
            train_one_epoch(model, epoch)
            loss = validate(model)
            if loss < best_loss or when == "always":
                best_loss, best = min(loss, best_loss), keep(model)
        if load:
            model.load_state_dict(best, strict=False)
        return best_loss

    return train_and_keep_best


def _parameters_only(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def _through_a_file(model):
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer)


RIGHT["training.clinic-best"] = {
    "clones": _keeper(lambda model: {name: value.clone() for name, value in model.state_dict().items()}),
    "through a file": _keeper(_through_a_file),
    "state of a copied model": _keeper(lambda model: copy.deepcopy(model).state_dict()),
}
WRONG["training.clinic-best"] = {
    "alias": (_keeper(lambda model: model.state_dict()), "returns the live tensors"),
    "shallow copy": (_keeper(lambda model: dict(model.state_dict())), "returns the live tensors"),
    "never loaded": (_keeper(lambda model: copy.deepcopy(model.state_dict()), load=False), "returns the live tensors"),
    "buffers forgotten": (_keeper(_parameters_only), "running means are buffers"),
    "last one kept": (_keeper(lambda model: copy.deepcopy(model.state_dict()), when="always"), "live tensors"),
}


def _resumer(*, twice: bool = False, model_state: bool = True, optimizer_state: bool = True, old: bool = False) -> Any:
    def resume(path, make_model, make_optimizer):
        saved = torch.load(path)
        model = make_model()
        optimizer = make_optimizer(model.parameters())
        first = model
        if twice:
            model = make_model()
        if model_state:
            (first if old else model).load_state_dict(saved["model"])
        if optimizer_state:
            optimizer.load_state_dict(saved["optimizer"])
        return model, optimizer

    return resume


def _resume_weights_first(path, make_model, make_optimizer):
    saved = torch.load(path, map_location="cpu")
    model = make_model()
    model.load_state_dict(saved["model"])
    optimizer = make_optimizer(model.parameters())
    optimizer.load_state_dict(saved["optimizer"])
    return model, optimizer


def _resume_optimizer_rebuilt(path, make_model, make_optimizer):
    saved = torch.load(path)
    optimizer = make_optimizer(make_model().parameters())
    model = make_model()
    optimizer = make_optimizer(list(model.parameters()))
    optimizer.load_state_dict(saved["optimizer"])
    model.load_state_dict(saved["model"])
    return model, optimizer


RIGHT["training.clinic-resume"] = {
    "weights first": _resume_weights_first,
    "optimizer built again": _resume_optimizer_rebuilt,
    "a list": lambda *arguments: list(_resume_weights_first(*arguments)),
}
WRONG["training.clinic-resume"] = {
    "optimizer of the old network": (_resumer(twice=True), "network that was thrown away"),
    "weights into the old network": (_resumer(twice=True, old=True), "on the model that you return"),
    "no weights": (_resumer(model_state=False), "on the model that you return"),
    "no momentum": (_resumer(optimizer_state=False), "on the optimizer that you return"),
    "one thing back": (lambda path, make_model, make_optimizer: make_model(), "return model, optimizer"),
}

TestTraining = exercise_tests("training", RIGHT, WRONG)
