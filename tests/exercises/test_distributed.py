"""Lesson 07's exercises: right answers in several forms pass, each wrong one meets its own message."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DistributedSampler

from course_utils.seeding import derive, stream
from tests.exercises.harness import Answers, WrongAnswers, exercise_tests

RIGHT: Answers = {}
WRONG: WrongAnswers = {}


def me(dist):
    return dist.get_rank(), dist.get_world_size()


# --- around ----------------------------------------------------------------------------------------------------------


def _passed_on(tensor, dist, rounds=None, send_first=False, own_buffer=True, step=1, order=None):
    """Receive round by round; the options make the usual mistakes."""
    rank, n = me(dist)
    found, current = [tensor], tensor
    came = torch.empty_like(tensor)
    for _ in range(n - 1 if rounds is None else rounds(n)):
        came = torch.empty_like(tensor) if own_buffer else came
        if send_first:
            dist.send(current, (rank + step) % n)
            dist.recv(came, (rank - step) % n)
        else:
            sending = dist.isend(current.clone(), (rank + step) % n)
            dist.recv(came, (rank - step) % n)
            sending.wait()
        found.append(came)
        current = came
    if order == "came":
        return found
    return [found[(rank - place) % n] for place in range(n)] if len(found) >= n else found


def _receiving_first(tensor, dist):
    rank, n = me(dist)
    found = {rank: tensor}
    for s in range(1, n):
        came = torch.empty_like(tensor)
        receiving = dist.irecv(came, (rank - 1) % n)
        dist.isend(found[(rank - s + 1) % n], (rank + 1) % n).wait()
        receiving.wait()
        found[(rank - s) % n] = came
    return [found[k] for k in range(n)]


def _odd_and_even(tensor, dist):
    rank, n = me(dist)
    places, current = [None] * n, tensor
    places[rank] = tensor
    for s in range(1, n):
        came = torch.empty_like(tensor)
        if rank == 0:  # one rank that receives first breaks the circle
            dist.recv(came, n - 1)
            dist.send(current, 1 % n)
        else:
            dist.send(current, (rank + 1) % n)
            dist.recv(came, rank - 1)
        places[(rank - s) % n] = current = came
    return places


RIGHT["distributed.around"] = {
    "then sorted": _passed_on,
    "receives first": _receiving_first,
    "rank 0 receives first": _odd_and_even,
}
WRONG["distributed.around"] = {
    "sends first": (lambda t, d: _passed_on(t, d, send_first=True), "Begin with dist.isend"),
    "in the order they came": (lambda t, d: _passed_on(t, d, order="came"), "order in which they came"),
    "one buffer": (lambda t, d: _passed_on(t, d, own_buffer=False), "what came last: receive into a new tensor"),
    "to everybody": (lambda t, d: _everybody(t, d), "(r + 1) % n and nobody else"),
    "one round too many": (lambda t, d: _passed_on(t, d, rounds=lambda n: n), "what it got in the round before"),
    "to the left": (lambda t, d: _passed_on(t, d, step=-1), "(r + 1) % n"),
    "its own only": (lambda t, d: [t] * d.get_world_size(), "stands at place k"),
    "a stacked tensor": (lambda t, d: torch.stack(_passed_on(t, d)), "One tensor for each rank"),
    "receives only": (lambda t, d: d.recv(t, (d.get_rank() - 1) % d.get_world_size()), "nobody sends"),
}


def _everybody(tensor, dist):
    rank, n = me(dist)
    sending = [dist.isend(tensor, k) for k in range(n) if k != rank]
    found = [tensor if k == rank else torch.empty_like(tensor) for k in range(n)]
    for k in range(n):
        if k != rank:
            dist.recv(found[k], k)
    [work.wait() for work in sending]
    return found


# --- ring ------------------------------------------------------------------------------------------------------------


def _ring(tensor, dist, steps=None, mean=False, in_place=True, order=0, send=None, cut=torch.tensor_split):
    rank, n = me(dist)
    parts = list(cut(tensor if in_place else tensor.clone(), n))
    for s in range(2 * (n - 1) if steps is None else steps(n)):
        out, into = (rank - s) % n, (rank - s - 1 + order) % n
        came = torch.empty_like(parts[into])
        if send == "first":
            dist.send(parts[out], (rank + 1) % n)
            dist.recv(came, (rank - 1) % n)
        else:
            sending = dist.isend(parts[out], (rank + 1) % n)
            dist.recv(came, (rank - 1) % n)
            sending.wait()
        if s < n - 1:
            parts[into] += came
        else:
            parts[into].copy_(came)
    if mean:
        tensor /= n
    return tensor


def _two_loops(tensor, dist):
    rank, n = me(dist)
    left, right = (rank - 1) % n, (rank + 1) % n
    ends = torch.tensor([round(k * len(tensor) / n) for k in range(n + 1)]).tolist()
    part = [tensor[a:b] for a, b in itertools.pairwise(ends)]
    for s in range(n - 1):
        work = dist.isend(part[(rank - s) % n], right)
        came = torch.zeros_like(part[(rank - s - 1) % n])
        dist.recv(came, left)
        work.wait()
        part[(rank - s - 1) % n].add_(came)
    for s in range(n - 1):
        work = dist.isend(part[(rank + 1 - s) % n], right)
        dist.recv(part[(rank - s) % n], left)  # no copy: straight into its place
        work.wait()


def _whole_tensors(tensor, dist):
    total = tensor.clone()
    for other in _passed_on(tensor.clone(), dist):
        total += other
    tensor.copy_(total - tensor)


def _star(tensor, dist):
    rank, n = me(dist)
    if n == 1:
        return
    if rank:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    for k in range(1, n):
        came = torch.empty_like(tensor)
        dist.recv(came, k)
        tensor += came
    for k in range(1, n):
        dist.send(tensor, k)


RIGHT["distributed.ring"] = {
    "one loop": _ring,
    "two loops": _two_loops,
    "also returns it": lambda t, d: _ring(t, d),
}
WRONG["distributed.ring"] = {
    "sends first": (lambda t, d: _ring(t, d, send="first"), "Begin with dist.isend"),
    "half of it": (lambda t, d: _ring(t, d, steps=lambda n: n - 1), "has the sum"),
    "mean": (lambda t, d: _ring(t, d, mean=True), "That is the mean"),
    "a copy": (lambda t, d: _ring(t, d, in_place=False), "in place: tensor.copy_"),
    "whole tensors": (_whole_tensors, "one of n parts"),
    "all to rank 0": (_star, "Whole tensors go round"),
    "library": (lambda t, d: d.all_reduce(t), "none was sent"),
    "one step too many": (lambda t, d: _ring(t, d, steps=lambda n: 2 * n - 1), "here are more"),
    "parts of the wrong place": (lambda t, d: _ring(t, d, order=1), "has the sum"),
    "chunk, which can give fewer parts": (lambda t, d: _ring(t, d, cut=torch.chunk), "always gives n"),
}

# --- average ---------------------------------------------------------------------------------------------------------


def _average(model, dist, zeros=True, divide=True, weights=False):
    for p in model.parameters():
        if p.grad is None:
            if not zeros:
                continue
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.data if weights else p.grad)
        if divide:
            p.grad /= dist.get_world_size()


def _one_vector(model, dist):
    ps = list(model.parameters())
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in ps])
    dist.all_reduce(flat)
    for p, part in zip(ps, (flat / dist.get_world_size()).split([p.numel() for p in ps]), strict=True):
        p.grad = part.view_as(p).clone()


def _asynchronous(model, dist):
    works = []
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad / dist.get_world_size()
        works.append(dist.all_reduce(p.grad, async_op=True))
    for work in works:
        work.wait()


def _asking_first(model, dist):
    for p in model.parameters():
        has = torch.tensor(float(p.grad is not None))
        dist.all_reduce(has)
        if has > 0:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def _forgets_the_result(model, dist):
    for p in model.parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad.clone()
        dist.all_reduce(grad)


RIGHT["distributed.average"] = {
    "one vector": _one_vector,
    "asynchronous": _asynchronous,
    "asks who has one": _asking_first,
}
WRONG["distributed.average"] = {
    "skips None": (lambda m, d: _average(m, d, zeros=False), "whose gradient is None"),
    "sum": (lambda m, d: _average(m, d, divide=False), "That is the sum"),
    "a copy": (_forgets_the_result, "as they were"),
    "None goes in": (lambda m, d: [d.all_reduce(p.grad) for p in m.parameters()], "put zeros in its place"),
    "rank 0 only": (lambda m, d: _average(m, d) if d.get_rank() == 0 else None, "skipped an all_reduce"),
    "weights": (lambda m, d: _average(m, d, weights=True), "of all ranks' gradients"),
}

# --- wrap ------------------------------------------------------------------------------------------------------------


def _wrapper(start=True, buffers=True, divide=True, hooks=True, forward=True, kind="accumulate", source=0):
    class Wrapper(nn.Module):
        def __init__(self, module, dist):
            super().__init__()
            self.module, self.dist = module, dist
            with torch.no_grad():
                if start:
                    for p in module.parameters():
                        dist.broadcast(p, source)
                if buffers:
                    for b in module.buffers():
                        dist.broadcast(b, source)
            for p in module.parameters() if hooks else ():
                if kind == "accumulate":
                    p.register_post_accumulate_grad_hook(self.average)
                else:
                    p.register_hook(self.averaged)

        def average(self, p):
            self.dist.all_reduce(p.grad)
            if divide:
                p.grad /= self.dist.get_world_size()

        def averaged(self, grad):
            grad = grad.clone()
            self.dist.all_reduce(grad)
            return grad / self.dist.get_world_size()

        def forward(self, *inputs):
            return self.module(*inputs) if forward else inputs[0]

    return Wrapper


def _state_dict_wrapper(module, dist):
    for value in module.state_dict().values():
        dist.broadcast(value, 0)
    for p in module.parameters():

        def average(p):
            mean = p.grad / dist.get_world_size()
            dist.all_reduce(mean)
            p.grad = mean

        p.register_post_accumulate_grad_hook(average)
    return module


class _HooksInForward(nn.Module):
    def __init__(self, module, dist):
        super().__init__()
        self.module, self.dist = module, dist
        for t in module.state_dict().values():
            dist.broadcast(t, 0)

    def average(self, p):
        self.dist.all_reduce(p.grad)
        p.grad /= self.dist.get_world_size()

    def forward(self, x):
        for p in self.module.parameters():
            p.register_post_accumulate_grad_hook(self.average)
        return self.module(x)


class _HooksReturn(nn.Module):
    def __init__(self, module, dist):
        super().__init__()
        self.module = module
        for t in module.state_dict().values():
            dist.broadcast(t, 0)

        def average(p):
            mean = p.grad / dist.get_world_size()
            dist.all_reduce(mean)
            return mean

        for p in module.parameters():
            p.register_post_accumulate_grad_hook(average)

    def forward(self, x):
        return self.module(x)


class _NoSuper(nn.Module):
    def __init__(self, module, dist):
        self.module = module


class _Leaf(nn.Module):
    def __init__(self, module, dist):
        super().__init__()
        for p in module.parameters():
            p += 1


RIGHT["distributed.wrap"] = {
    "hooks on gradients": _wrapper(kind="tensor"),
    "the module itself, by its state": _state_dict_wrapper,
    "without .data": _wrapper(),
}
WRONG["distributed.wrap"] = {
    "other starts": (_wrapper(start=False), "dist.broadcast(p.data, 0)"),
    "no buffers": (_wrapper(buffers=False), "module.buffers()"),
    "start of rank 1": (_wrapper(source=1), "start with the weights of rank 0"),
    "sum": (_wrapper(divide=False), "Divide by their number"),
    "no hooks": (_wrapper(hooks=False), "A hook on every parameter"),
    "no forward": (_wrapper(forward=False), "forward(x) returns"),
    "no super": (_NoSuper, "super().__init__() first"),
    "in place on leaves": (_Leaf, "through .data"),
    "a function": (lambda module, dist: module.forward, "is a module"),
    "hooks registered in forward": (_HooksInForward, "pile up"),
    "hooks that return the mean": (_HooksReturn, "The hook returns nothing"),
}

# --- buckets ---------------------------------------------------------------------------------------------------------


def _plan(sizes, cap, places=None, close=lambda total, cap: total >= cap, rest=True, first=False):
    buckets, current, total = [], [], 0
    for place in places(len(sizes)) if places else range(len(sizes) - 1, -1, -1):
        if first and current and total + sizes[place] > cap:
            buckets.append(current)
            current, total = [], 0
        current.append(place)
        total += sizes[place]
        if not first and close(total, cap):
            buckets.append(current)
            current, total = [], 0
    if rest and current:
        buckets.append(current)
    return buckets


def _by_sums(sizes, cap):
    buckets = [[]]
    for place in reversed(range(len(sizes))):
        buckets[-1].append(place)
        if sum(sizes[i] for i in buckets[-1]) >= cap:
            buckets.append([])
    return [bucket for bucket in buckets if bucket]


RIGHT["distributed.buckets"] = {
    "sums": _by_sums,
    "tuples inside": lambda sizes, cap: [tuple(bucket) for bucket in _plan(sizes, cap)],
    "a tuple of tuples": lambda sizes, cap: tuple(tuple(bucket) for bucket in _plan(sizes, cap)),
}
WRONG["distributed.buckets"] = {
    "forward order": (lambda s, c: _plan(s, c, places=range), "Backward reaches the last parameter first"),
    "never above the cap": (lambda s, c: _plan(s, c, first=True), "no bucket exceeds the cap"),
    "forgets the rest": (lambda s, c: _plan(s, c, rest=False), "may stay below the cap"),
    "above only": (lambda s, c: _plan(s, c, close=lambda total, cap: total > cap), "is closed when it holds"),
    "sizes instead of places": (lambda s, c: [[s[i] for i in b] for b in _plan(s, c)], "Places are whole numbers"),
    "an empty one at the end": (lambda s, c: [*_plan(s, c), []], "Close a bucket only when"),
    "flat": (lambda s, c: [i for b in _plan(s, c) for i in b], "One list of places"),
}

# --- accumulate ------------------------------------------------------------------------------------------------------


def _accumulate(ddp, batches, loss_fn, quiet=lambda i, n: i < n - 1, divide=True, forward_outside=False, each=True):
    for i, (x, y) in enumerate(batches if each else batches[-1:]):
        out = ddp(x) if forward_outside else None
        with ddp.no_sync() if quiet(i, len(batches)) else nullcontext():
            out = ddp(x) if out is None else out
            loss = loss_fn(out, y) / (len(batches) if divide else 1)
            loss.backward()


def _two_parts(ddp, batches, loss_fn):
    *most, last = batches
    with ddp.no_sync():
        for x, y in most:
            loss_fn(ddp(x), y).div(len(batches)).backward()
    loss_fn(ddp(last[0]), last[1]).div(len(batches)).backward()


def _one_big_batch(ddp, batches, loss_fn):
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    loss_fn(ddp(x), y).backward()


def _past_the_wrapper(ddp, batches, loss_fn):
    for x, y in batches:
        (loss_fn(ddp.module(x), y) / len(batches)).backward()


def _one_loss(ddp, batches, loss_fn):
    with ddp.no_sync():
        losses = [loss_fn(ddp(x), y) for x, y in batches[:-1]]
    x, y = batches[-1]
    (sum([*losses, loss_fn(ddp(x), y)]) / len(batches)).backward()


def _divides_at_the_end(ddp, batches, loss_fn):
    _accumulate(ddp, batches, loss_fn, divide=False)
    for p in ddp.parameters():
        p.grad /= len(batches)


RIGHT["distributed.accumulate"] = {
    "in two parts": _two_parts,
    "divides at the end": _divides_at_the_end,
    "one big batch": _one_big_batch,
    "one loss": _one_loss,
}
WRONG["distributed.accumulate"] = {
    "talks each time": (lambda d, b, f: _accumulate(d, b, f, quiet=lambda i, n: False), "times for"),
    "never talks": (lambda d, b, f: _accumulate(d, b, f, quiet=lambda i, n: True), "must not be in no_sync()"),
    "does not divide": (lambda d, b, f: _accumulate(d, b, f, divide=False), "divide each loss"),
    "never talks, does not divide": (
        lambda d, b, f: _accumulate(d, b, f, divide=False, quiet=lambda i, n: True),
        "And divide by the number",
    ),
    "forward outside": (lambda d, b, f: _accumulate(d, b, f, forward_outside=True), "the forward pass too"),
    "last batch only": (lambda d, b, f: _accumulate(d, b, f, each=False), "backward for every batch"),
    "talks in the first": (lambda d, b, f: _accumulate(d, b, f, quiet=lambda i, n: i > 0), "The mean over all"),
    "no backward": (lambda d, b, f: [f(d(x), y) for x, y in b] and None, "No gradient arrived"),
    "past the wrapper": (_past_the_wrapper, "not past it"),
}

# --- shares ----------------------------------------------------------------------------------------------------------


def _share(n, rank, n_ranks, epoch, seed=None, pad=True, deal="stride", own=False, tensor=False):
    generator = torch.Generator().manual_seed(epoch if seed is None else seed(rank, epoch))
    order = torch.randperm(n, generator=generator).tolist()
    if pad:
        order += (order * n_ranks)[: -n % n_ranks]
    else:
        order = order[: n - n % n_ranks] if pad is None else order
    if own:
        order = list(range(n)) + list(range(-n % n_ranks))
        mine = order[rank::n_ranks]
        random.Random(epoch).shuffle(mine)
        return mine
    each = len(order) // n_ranks
    found = order[rank::n_ranks] if deal == "stride" else order[rank * each : (rank + 1) * each]
    return torch.tensor(found) if tensor else found


def _sampler(n, rank, n_ranks, epoch):
    sampler = DistributedSampler(range(n), n_ranks, rank, seed=5)
    sampler.set_epoch(epoch)
    return list(sampler)


def _global(n, rank, n_ranks, epoch):
    order = torch.randperm(n).tolist()
    return (order + order[: -n % n_ranks])[rank::n_ranks]


RIGHT["distributed.shares"] = {
    "the library's sampler": _sampler,
    "blocks": lambda *a: _share(*a, deal="blocks"),
    "random.sample": lambda n, r, k, e: (
        lambda o: (o + o[: -n % k])[r::k]
    )(random.Random(e + 1).sample(range(n), n)),
}  # fmt: skip
WRONG["distributed.shares"] = {
    "seed by rank": (lambda *a: _share(*a, seed=lambda r, e: 100 * e + r), "shuffle in the same way"),
    "no epoch": (lambda *a: _share(*a, seed=lambda r, e: 0), "The epoch must be in the seed"),
    "leaves some out": (lambda *a: _share(*a, pad=None), "Repeat some examples"),
    "unequal": (lambda *a: _share(*a, pad=False), "Repeat some examples"),
    "global generator": (_global, "seen by nobody"),
    "keeps its own": (lambda *a: _share(*a, own=True), "Shuffle first, then deal"),
    "a tensor": (lambda *a: _share(*a, tensor=True), "tolist()"),
    "everything": (lambda n, r, k, e: _share(n, 0, 1, e), "its own part of the order"),
    "rotates": (lambda n, r, k, e: [(e + i) % n for i in range(r, n + -n % k, k)], "only change the rank"),
}

# --- statistics ------------------------------------------------------------------------------------------------------


def _total(value, dist):
    value = torch.as_tensor(value, dtype=torch.float32).clone()
    dist.all_reduce(value)
    return value


def _statistics(x, dist, mean="all", variance="all", ddof=0):
    n = _total(float(len(x)), dist)
    if mean == "own":
        middle = x.mean(0)
    elif mean == "means":
        middle = _total(x.mean(0), dist) / dist.get_world_size()
    else:
        middle = _total(x.sum(0), dist) / n
    if variance == "own":
        return middle, x.var(0, unbiased=False)
    if variance == "of variances":
        return middle, _total(x.var(0, unbiased=False), dist) / dist.get_world_size()
    if variance == "weighted":
        return middle, _total(x.var(0, unbiased=False) * len(x), dist) / n
    if variance == "squares":
        return middle, _total(x.square().sum(0), dist) / n - middle.square()
    return middle, _total((x - middle).square().sum(0), dist) / (n - ddof)


def _in_double(x, dist):
    x = x.double()
    sums = torch.cat([x.sum(0), x.square().sum(0), torch.tensor([float(len(x))], dtype=torch.float64)])
    dist.all_reduce(sums)
    a, b = (sums[:-1] / sums[-1]).chunk(2)
    return [a.float(), (b - a * a).float()]


def _combined(x, dist):
    n, own = _total(float(len(x)), dist), x.mean(0)
    middle = _total(own * len(x), dist) / n
    return middle, _total(len(x) * (x.var(0, unbiased=False) + (own - middle) ** 2), dist) / n


RIGHT["distributed.statistics"] = {"in double precision": _in_double, "combined": _combined, "twice": _statistics}
WRONG["distributed.statistics"] = {
    "own mean": (lambda x, d: _statistics(x, d, mean="own"), "of this rank's examples"),
    "mean of means": (lambda x, d: _statistics(x, d, mean="means"), "mean of means"),
    "own variance": (lambda x, d: _statistics(x, d, variance="own"), "variance of this rank"),
    "mean of variances": (lambda x, d: _statistics(x, d, variance="of variances"), "means differ too"),
    "spread around own means": (lambda x, d: _statistics(x, d, variance="weighted"), "part of the variance"),
    "squares": (lambda x, d: _statistics(x, d, variance="squares"), "loses its digits"),
    "unbiased": (lambda x, d: _statistics(x, d, ddof=1), "not by one less"),
    "mean only": (lambda x, d: _total(x.sum(0), d), "A pair of tensors"),
    "sums a number": (lambda x, d: d.all_reduce(len(x)), "all_reduce sums tensors"),
}

# --- accuracy --------------------------------------------------------------------------------------------------------


def _accuracy(p, y, dist, how="sums"):
    hits, n = float((p == y).sum()), float(len(y))
    if how == "own":
        return hits / n if n else 0.0
    if how == "means":
        return (_total(hits / n if n else 0.0, dist) / dist.get_world_size()).item()
    if how == "division first":
        return (_total(torch.tensor((p == y).float().mean()), dist) / dist.get_world_size()).item()
    if how == "skips":
        if not n:
            return 0.0
        counts = _total(torch.tensor([hits, n]), dist)
        return (counts[0] / counts[1]).item()
    counts = _total(torch.tensor([hits, n]), dist)
    return counts[0] / counts[1] if how == "tensor" else (counts[0] / counts[1]).item()


def _gathered(p, y, dist):
    own = torch.tensor([int((p == y).sum()), len(y)])
    everybody = [torch.zeros(2, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, own)
    hits, n = torch.stack(everybody).sum(0).tolist()
    return hits / n


RIGHT["distributed.accuracy"] = {
    "gathered": _gathered,
    "two sums": lambda p, y, d: (_total((p == y).sum(), d) / _total(float(len(y)), d)).item(),
}
WRONG["distributed.accuracy"] = {
    "own": (lambda p, y, d: _accuracy(p, y, d, "own"), "of this rank alone"),
    "mean of shares": (lambda p, y, d: _accuracy(p, y, d, "means"), "mean of the ranks' shares"),
    "nan of nothing": (lambda p, y, d: _accuracy(p, y, d, "division first"), "mean of the ranks' shares"),
    "a rank without any stays away": (lambda p, y, d: _accuracy(p, y, d, "skips"), "equally often"),
    "a tensor": (lambda p, y, d: _accuracy(p, y, d, "tensor"), "return a Python number"),
    "sums a number": (lambda p, y, d: d.all_reduce(int((p == y).sum())), "all_reduce sums tensors"),
}

# --- save ------------------------------------------------------------------------------------------------------------


def _save(ddp, path, dist, who=lambda rank: rank == 0, barrier="after", state=lambda ddp: ddp.module.state_dict()):
    if barrier == "before":
        dist.barrier()
    if who(dist.get_rank()):
        torch.save(state(ddp), path)
        if barrier == "inside":
            dist.barrier()
    if barrier == "after":
        dist.barrier()


def _stripped(ddp, path, dist):
    if not dist.get_rank():
        torch.save({name.removeprefix("module."): value for name, value in ddp.state_dict().items()}, path)
    done = torch.ones(1)
    dist.all_reduce(done)


RIGHT["distributed.save"] = {"prefix taken off": _stripped, "with a barrier": _save}
WRONG["distributed.save"] = {
    "everybody": (lambda m, p, d: _save(m, p, d, who=lambda r: True), "two writers"),
    "barrier inside the if": (lambda m, p, d: _save(m, p, d, barrier="inside"), "not stand inside the if"),
    "no barrier": (lambda m, p, d: _save(m, p, d, barrier=""), "dist.barrier() after"),
    "barrier before": (lambda m, p, d: _save(m, p, d, barrier="before"), "dist.barrier() after"),
    "with the prefix": (lambda m, p, d: _save(m, p, d, state=lambda m: m.state_dict()), "before each name"),
    "weights only of a layer": (
        lambda m, p, d: _save(m, p, d, state=lambda m: m.module.weight.detach()),
        "state_dict()",
    ),
    "the last rank": (lambda m, p, d: _save(m, p, d, who=lambda r: r == 2), "on rank 0"),
    "nobody": (lambda m, p, d: _save(m, p, d, who=lambda r: False), "on rank 0"),
}

# --- guilty ----------------------------------------------------------------------------------------------------------


def _guilty(logs, zipped=itertools.zip_longest, key=lambda line: line, right=False, first=0):
    for place, lines in enumerate(zipped(*logs)):
        keys = [key(line) for line in lines]
        if len(set(keys)) > 1:
            usual = Counter(keys).most_common(1)[0][0]
            return place + first, [r for r, k in enumerate(keys) if (k == usual) == right]
    return None


def _by_index(logs):
    for place in range(max(map(len, logs))):
        lines = [log[place] if place < len(log) else None for log in logs]
        for line in lines:
            if lines.count(line) > len(lines) / 2 and lines.count(line) < len(lines):
                return [place, [r for r, other in enumerate(lines) if other != line]]
    return None


def _shortest(logs):
    lengths = [len(log) for log in logs]
    if len(set(lengths)) == 1:
        return None
    return min(lengths), [r for r, n in enumerate(lengths) if n == min(lengths)]


def _anywhere(logs):
    first = _guilty(logs)
    usual = Counter(map(tuple, logs)).most_common(1)[0][0]
    return first and (first[0], [r for r, log in enumerate(logs) if tuple(log) != usual])


RIGHT["distributed.guilty"] = {"by index": _by_index, "zipped": _guilty}
WRONG["distributed.guilty"] = {
    "those who were right": (lambda logs: _guilty(logs, right=True), "that were right"),
    "counts from 1": (lambda logs: _guilty(logs, first=1), "the place"),
    "stops with the shortest": (lambda logs: _guilty(logs, zipped=zip), "got None"),
    "names only": (lambda logs: _guilty(logs, key=lambda line: line and line.split()[0]), "the shape too"),
    "shortest log": (_shortest, "got None"),
    "against rank 0": (
        lambda logs: next(
            (
                (i, [r for r, line in enumerate(lines) if line != lines[0]])
                for i, lines in enumerate(itertools.zip_longest(*logs))
                if len(set(lines)) > 1
            ),
            None,
        ),
        "most ranks",
    ),
    "by hand": (lambda logs: max(logs), "return None"),
    "who parts anywhere": (_anywhere, "Who parts later"),
}

# --- clinic ----------------------------------------------------------------------------------------------------------


def _orders(dataset, rank, n_ranks, epochs, epoch=lambda e, r: e, seed=0, shuffle=True, again=False, own=False):
    sampler = DistributedSampler(dataset, n_ranks, rank, shuffle=shuffle, seed=seed)
    found = []
    for e in range(epochs):
        if epoch is not None:
            sampler.set_epoch(epoch(e, rank))
        indices = list(sampler)
        if own:
            random.Random(e).shuffle(indices)
        found.append(indices)
    return found


RIGHT["distributed.clinic-epoch"] = {
    "set_epoch": _orders,
    "a new sampler each time": lambda data, r, n, e: [
        list(DistributedSampler(data, n, r, seed=k + 3)) for k in range(e)
    ],
    "sets the attribute": lambda data, r, n, e: _orders(data, r, n, e, epoch=lambda k, rank: 2 * k + 1),
}
WRONG["distributed.clinic-epoch"] = {
    "as handed out": (lambda *a: _orders(*a, epoch=None), "nobody tells it the epoch"),
    "epoch and rank": (lambda *a: _orders(*a, epoch=lambda e, r: 10 * e + r), "All ranks must shuffle alike"),
    "shuffles its own": (lambda *a: _orders(*a, epoch=None, own=True), "deal anew"),
    "global generator": (
        lambda data, r, n, e: [torch.randperm(24).tolist()[r::n] for _ in range(e)],
        "seen by nobody",
    ),
    "one list": (lambda *a: _orders(*a)[0], "A list of lists"),
    "everything on each rank": (
        lambda data, r, n, e: [list(DistributedSampler(data, 1, 0, seed=k)) for k in range(e)],
        "Each rank reads all examples",
    ),
}


def _begin(rank, seed, make_model, model_seed=None, noise=None):
    torch.manual_seed(seed if model_seed is None else model_seed(rank, seed))
    model = make_model()
    return model, (noise(rank, seed) if noise else stream(seed, "noise", rank))


def _unseeded(rank, seed):
    generator = torch.Generator()
    generator.seed()
    return generator


RIGHT["distributed.clinic-noise"] = {
    "seed plus rank": lambda r, s, m: _begin(r, s, m, noise=lambda r, s: torch.Generator().manual_seed(s + r)),
    "derived": lambda r, s, m: _begin(r, s, m, noise=lambda r, s: torch.Generator().manual_seed(derive(s, "n", r))),
}
WRONG["distributed.clinic-noise"] = {
    "as handed out": (
        lambda r, s, m: _begin(r, s, m, noise=lambda r, s: torch.Generator().manual_seed(s)),
        "Let the rank be part of it",
    ),
    "all by rank": (lambda r, s, m: _begin(r, s, m, model_seed=lambda r, s: s + r), "same on every rank"),
    "not seeded": (lambda r, s, m: _begin(r, s, m, noise=_unseeded), "from nothing else"),
    "rank alone": (
        lambda r, s, m: _begin(r, s, m, noise=lambda r, s: torch.Generator().manual_seed(r)),
        "Both depend on the seed",
    ),
    "model alone": (lambda r, s, m: _begin(r, s, m)[0], "return model, noise"),
    "the global generator": (
        lambda r, s, m: _begin(r, s, m, noise=lambda r, s: torch.default_generator.manual_seed(s + r)),
        "global generator, and everybody",
    ),
}


def _prepare(dist, download, load, who=lambda rank: rank == 0, barrier="after", order="download first"):
    if order == "load first":
        found = load()
    if who(dist.get_rank()):
        download()
        if barrier == "inside":
            dist.barrier()
    if barrier == "others" and not who(dist.get_rank()):
        dist.barrier()
    if barrier == "after":
        dist.barrier()
    return found if order == "load first" else load()


def _else_branch(dist, download, load):
    if dist.get_rank() == 0:
        download()
        dist.barrier()
    else:
        dist.barrier()
    return load()


RIGHT["distributed.clinic-barrier"] = {
    "in both branches": _else_branch,
    "by a broadcast": lambda d, down, load: (
        down() if d.get_rank() == 0 else None,
        d.broadcast(torch.ones(1), 0),
        load(),
    )[2],
}
WRONG["distributed.clinic-barrier"] = {
    "as handed out": (lambda *a: _prepare(*a, barrier="inside"), "opens when all ranks have come"),
    "no barrier": (lambda *a: _prepare(*a, barrier=""), "nobody loads before"),
    "others only": (lambda *a: _prepare(*a, barrier="others"), "opens when all ranks have come"),
    "everybody downloads": (lambda *a: _prepare(*a, who=lambda r: True), "same file at the same time"),
    "loads first": (lambda *a: _prepare(*a, order="load first"), "nobody loads before"),
    "returns nothing": (lambda *a: _prepare(*a) and None, "return load()"),
}


def _until(dist, train_epoch, patience, decide="mean"):
    best, bad, epochs = float("inf"), 0, 0
    while bad < patience:
        loss = train_epoch()
        shared = torch.tensor(loss, dtype=torch.float64)
        if decide in ("mean", "sum"):
            dist.all_reduce(shared)
            loss = shared.item() / (dist.get_world_size() if decide == "mean" else 1)
        elif decide == "rank 0":
            dist.broadcast(shared, 0)
            loss = shared.item()
        elif decide == "max":
            dist.all_reduce(shared, op=dist.ReduceOp.MAX)
            loss = shared.item()
        elif decide == "number":
            dist.all_reduce(loss)
        epochs += 1
        best, bad = (loss, 0) if loss < best else (best, bad + 1)
    if decide == "late":
        dist.barrier()
    return epochs


def _when_all_agree(dist, train_epoch, patience):
    best, bad, epochs = float("inf"), 0, 0
    while True:
        loss = train_epoch()
        epochs += 1
        best, bad = (loss, 0) if loss < best else (best, bad + 1)
        ready = torch.tensor(float(bad >= patience))
        dist.all_reduce(ready)
        if ready == dist.get_world_size():
            return epochs


RIGHT["distributed.clinic-stop"] = {
    "mean": _until,
    "the sum decides alike": lambda d, t, p: _until(d, t, p, "sum"),
}
WRONG["distributed.clinic-stop"] = {
    "as handed out": (lambda d, t, p: _until(d, t, p, "own"), "left the loop"),
    "rank 0 decides": (lambda d, t, p: _until(d, t, p, "rank 0"), "rank 0 alone"),
    "the largest": (lambda d, t, p: _until(d, t, p, "max"), "stops when the mean"),
    "when no rank improves": (_when_all_agree, "no rank improves any more"),
    "a barrier at the end": (lambda d, t, p: _until(d, t, p, "late"), "decide alike"),
    "sums a number": (lambda d, t, p: _until(d, t, p, "number"), "torch.tensor(loss)"),
    "returns nothing": (lambda d, t, p: _until(d, t, p) and None, "return epochs"),
}


def _step(ddp, x, y, optimizer, call=lambda ddp: ddp, clear=True, factor=1, back=lambda loss: loss.item(), go=True):
    loss = F.cross_entropy(call(ddp)(x), y)
    if clear:
        optimizer.zero_grad()
    (loss * factor).backward()
    if go:
        optimizer.step()
    return back(loss)


RIGHT["distributed.clinic-module"] = {
    "through the wrapper": _step,
    "cleared first": lambda ddp, x, y, o: (o.zero_grad(), _step(ddp, x, y, o, clear=False))[1],
}
WRONG["distributed.clinic-module"] = {
    "as handed out": (lambda *a: _step(*a, call=lambda ddp: ddp.module), "goes past it"),
    "not cleared": (lambda *a: _step(*a, clear=False), "step before are still in"),
    "divides again": (lambda *a: _step(*a, factor=0.5), "made the step of the whole batch"),
    "twice": (lambda *a: _step(*a, factor=2), "no factor is needed"),
    "no step": (lambda *a: _step(*a, go=False), "zero_grad, backward, step"),
    "a tensor": (lambda *a: _step(*a, back=lambda loss: loss), "loss.item()"),
}

TestDistributed = exercise_tests("distributed", RIGHT, WRONG)
