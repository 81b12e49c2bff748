"""Exercises and clinic items of lesson 07: titles, hints, and where each check is."""

from __future__ import annotations

from course_utils.exercises.distributed_clinic import (
    check_clinic_barrier,
    check_clinic_epoch,
    check_clinic_module,
    check_clinic_noise,
    check_clinic_stop,
)
from course_utils.exercises.distributed_data import (
    check_accuracy,
    check_buckets,
    check_guilty,
    check_save,
    check_shares,
    check_statistics,
)
from course_utils.exercises.distributed_ring import (
    check_accumulate,
    check_around,
    check_average,
    check_ring,
    check_wrap,
)
from course_utils.exercises.registry import CLINIC, Exercise

_STUCK = "Nobody can go on"
_SENDS = (
    "waits in send",
    "Everybody waits until its message is taken, and nobody takes one. Begin with dist.isend, receive, then wait().",
)
_RECEIVES = (
    "waits in recv",
    "A rank waits for a message that nobody sends: each must send as often as the next receives.",
)
_LACKS = ("'Rank' object has no attribute", "Here dist has the functions that this lesson has used.")
_QUARREL = (
    "The ranks disagree",
    "Every rank must call the same collectives, in the same order, with tensors of the same shape and dtype.",
)
_NOTHING = ("'NoneType'", "dist.all_reduce, broadcast and recv return nothing: they fill the tensor that you give.")
_LEFT = (_STUCK, "A rank calls a collective that another doesn't. Every rank must call the same ones, equally often.")

EXERCISES = [
    Exercise(
        id="distributed.around",
        title="Round the ring",
        check=check_around,
        hints=(
            "In each round, give the right neighbour what came from the left in the round before; at first, your own.",
            "isend to (rank + 1) % n, recv into a new tensor from (rank − 1) % n, then wait(). After round s you hold "
            "the tensor of rank (rank − s) % n.",
            "found = [None] * n; found[rank] = tensor; for s in range(1, n): send found[(rank − s + 1) % n], receive "
            "found[(rank − s) % n]",
        ),
        errors=(
            _SENDS,
            _RECEIVES,
            _NOTHING,
            _LACKS,
            (
                "was never received",
                "A message was sent that nobody takes: n − 1 rounds, one send and one recv in each.",
            ),
            ("send to or receive from itself", "With one rank there is nobody to send to."),
        ),
    ),
    Exercise(
        id="distributed.ring",
        title="Ring all-reduce",
        check=check_ring,
        hints=(
            "Cut the tensor into n parts. Each part goes round the ring to be added up, and again to be handed out.",
            "parts = tensor.tensor_split(n), which are views. In step s send part (rank − s) % n and receive part "
            "(rank − s − 1) % n: for s < n − 1 add what came, later copy it.",
            "sending = dist.isend(parts[(rank − s) % n], right); dist.recv(new, left); sending.wait(); then "
            "parts[(rank − s − 1) % n] += new, or .copy_(new), for s in range(2 * (n − 1))",
        ),
        errors=(
            _SENDS,
            _RECEIVES,
            _NOTHING,
            _LACKS,
            ("which received it into", "Parts may differ in size by one: receive into torch.empty_like(that part)."),
            (
                "index out of range",
                "tensor.chunk(n) can give fewer than n parts; tensor.tensor_split(n) always gives n.",
            ),
            ("must be contiguous", "Parts of a one-dimensional tensor by tensor_split are contiguous."),
            (
                "send to or receive from itself",
                "With one rank there is nobody to send to: range(2 * (n − 1)) is empty.",
            ),
        ),
    ),
    Exercise(
        id="distributed.average",
        title="Average the gradients",
        check=check_average,
        hints=(
            "All ranks must call the same collectives. What does a rank do whose parameter has no gradient?",
            "Give it zeros, torch.zeros_like(p), then dist.all_reduce(p.grad), then divide.",
            "for p in model.parameters(): p.grad = zeros if None; dist.all_reduce(p.grad); "
            "p.grad /= dist.get_world_size()",
        ),
        errors=(
            (
                "The ranks disagree",
                "A rank whose gradient is None skipped an all_reduce, and now sums others' numbers.",
            ),
            (_STUCK, "A rank whose gradient is None skipped an all_reduce. It must take part, with zeros."),
            ("takes a tensor", "A gradient can be None: put zeros in its place before the all_reduce."),
            ("'NoneType'", "A gradient can be None, and dist.all_reduce returns nothing: it works in place."),
            _LACKS,
        ),
    ),
    Exercise(
        id="distributed.wrap",
        title="DDP in ten lines",
        check=check_wrap,
        hints=(
            "Two things: everybody starts alike, and whenever a gradient is ready, it is averaged.",
            "dist.broadcast(t.data, 0) for parameters and buffers; p.register_post_accumulate_grad_hook(function) "
            "calls function(p) when p.grad is there.",
            "def average(p): dist.all_reduce(p.grad); p.grad /= dist.get_world_size()",
        ),
        errors=(
            ("a leaf Variable that requires grad", "Change parameters through .data or under torch.no_grad()."),
            ("cannot assign module before", "Call super().__init__() first."),
            ("hooks should return None", "The hook returns nothing: it changes p.grad, or puts a new tensor there."),
            _QUARREL,
            _LEFT,
            _NOTHING,
            _LACKS,
        ),
    ),
    Exercise(
        id="distributed.buckets",
        title="Which gradients travel together",
        check=check_buckets,
        hints=(
            "Which parameter's gradient is ready first?",
            "Go through the places backwards, add each to the open bucket and its bytes to a sum, and close when full.",
            "for place in reversed(range(len(sizes))): current.append(place); if the sum >= cap: "
            "buckets.append(current), and start a new one",
        ),
    ),
    Exercise(
        id="distributed.accumulate",
        title="Accumulate without talking",
        check=check_accumulate,
        hints=(
            "In which of the backward passes must the ranks talk to one another?",
            "with ddp.no_sync(): around forward and backward of all batches but the last; nullcontext() is a block "
            "that does nothing.",
            "for i, (x, y) in enumerate(batches): with ddp.no_sync() if i < len(batches) − 1 else nullcontext(): "
            "(loss_fn(ddp(x), y) / len(batches)).backward()",
        ),
        errors=(_LEFT,),
    ),
    Exercise(
        id="distributed.shares",
        title="Deal the examples",
        check=check_shares,
        hints=(
            "All ranks make the same shuffled list, then each takes its own part of it.",
            "torch.randperm(n, generator=g) with g seeded from the epoch; repeat some examples until the list can be "
            "divided; rank r takes every n_ranks-th, from r on.",
            "order = torch.randperm(n_examples, generator=torch.Generator().manual_seed(epoch)).tolist(); while "
            "len(order) % n_ranks: order.append(order[…]); return order[rank::n_ranks]",
        ),
    ),
    Exercise(
        id="distributed.statistics",
        title="Statistics of all ranks",
        check=check_statistics,
        hints=(
            "A mean over all ranks is a sum over all ranks, divided by a count over all ranks.",
            "First all_reduce x.sum(0) and the number of rows, and divide. Then all_reduce ((x − mean) ** 2).sum(0).",
            "total = torch.cat([x.sum(0), torch.tensor([float(len(x))])]); dist.all_reduce(total); "
            "mean = total[:-1] / total[-1]",
        ),
        errors=(
            _LEFT,
            _QUARREL,
            _LACKS,
            ("takes a tensor", "all_reduce sums tensors: torch.tensor(float(len(x)))."),
            _NOTHING,
        ),
    ),
    Exercise(
        id="distributed.accuracy",
        title="Accuracy over all ranks",
        check=check_accuracy,
        hints=(
            "Which two numbers of each rank can be added up?",
            "Put right answers and examples into one tensor of two numbers and all_reduce it.",
            "counts = torch.tensor([(p == y).sum(), len(y)]); dist.all_reduce(counts); (counts[0] / counts[1]).item()",
        ),
        errors=(
            _LEFT,
            _QUARREL,
            _LACKS,
            ("takes a tensor", "all_reduce sums tensors: torch.tensor([hits, examples])."),
            ("division by zero", "A rank may have no examples. Divide after the all_reduce."),
            _NOTHING,
        ),
    ),
    Exercise(
        id="distributed.save",
        title="One file for all",
        check=check_save,
        hints=(
            "Who writes, what, and when may the others read?",
            "if dist.get_rank() == 0 writes model.module.state_dict(); then a barrier that every rank comes to.",
            "if dist.get_rank() == 0: torch.save(model.module.state_dict(), path); and below it, not indented, "
            "dist.barrier()",
        ),
        errors=((_STUCK, "A barrier is for every rank: it must not stand inside the if."), _LACKS),
    ),
    Exercise(
        id="distributed.guilty",
        title="Find the guilty rank",
        check=check_guilty,
        hints=(
            "Find the first place at which the logs are not all equal. What did most ranks write there?",
            "itertools.zip_longest(*logs) walks along all logs and gives None where one has ended. "
            "collections.Counter(lines).most_common(1) finds what most wrote.",
            "for place, lines in enumerate(zip_longest(*logs)): if len(set(lines)) > 1: usual = the most common; "
            "return place, [r for r, line in enumerate(lines) if line != usual]",
        ),
        errors=(
            ("list index out of range", "The logs have different lengths: a rank that stopped early has a short one."),
        ),
    ),
    Exercise(
        id="distributed.clinic-epoch",
        title="Every epoch alike",
        check=check_clinic_epoch,
        kind=CLINIC,
        finding="distributed.no-set-epoch",
        hints=(
            "Print the lists of two epochs.",
            "The sampler shuffles from seed + epoch. Who tells it the epoch?",
            "sampler.set_epoch(epoch), before list(sampler)",
        ),
    ),
    Exercise(
        id="distributed.clinic-noise",
        title="Two cards, one noise",
        check=check_clinic_noise,
        kind=CLINIC,
        unseen="It examines one process, and the noise of no other rank.",
        hints=(
            "What must be the same on all ranks, and what must differ?",
            "The weights come from the seed alone. The noise needs the rank in its seed as well.",
            "noise = stream(seed, 'noise', rank), or a torch.Generator seeded from both.",
        ),
    ),
    Exercise(
        id="distributed.clinic-barrier",
        title="Rank 0 waits for ever",
        check=check_clinic_barrier,
        kind=CLINIC,
        unseen="It examines one process, and nobody waits there.",
        hints=(
            "Which ranks come to the barrier?",
            "A barrier opens when every rank has come. It must stand where every rank passes.",
            "if dist.get_rank() == 0: download(), then dist.barrier() outside the if, then return load()",
        ),
        errors=((_STUCK, "A barrier opens when all ranks have come to it. Here some never do."),),
    ),
    Exercise(
        id="distributed.clinic-stop",
        title="One stops, the other waits",
        check=check_clinic_stop,
        kind=CLINIC,
        unseen="It examines one process, and nobody waits there.",
        hints=(
            "Each rank has its own loss. When does each leave the loop?",
            "all_reduce the loss, so that every rank decides from the same number.",
            "mean = torch.tensor(loss); dist.all_reduce(mean); loss = mean.item() / dist.get_world_size()",
        ),
        errors=(
            (
                _STUCK,
                "One rank has left the loop, and the other waits for it in train_epoch(). They must decide alike.",
            ),
            (
                "The ranks disagree",
                "One rank left the loop and went on to another collective. They must decide alike.",
            ),
            ("takes a tensor", "all_reduce sums tensors: torch.tensor(loss)."),
            _NOTHING,
        ),
    ),
    Exercise(
        id="distributed.clinic-module",
        title="The way past the wrapper",
        check=check_clinic_module,
        kind=CLINIC,
        unseen="It examines one process, where there is nothing to average.",
        hints=(
            "Compare the weights of two ranks after a step.",
            "DDP prepares its averaging in its own forward.",
            "loss = F.cross_entropy(ddp(x), y)",
        ),
        errors=(_LEFT,),
    ),
]
