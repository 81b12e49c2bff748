"""No memory left, no device, two devices."""

from __future__ import annotations

from typing import Any

from course_utils.doctor.explain import Case, Explanation, explains
from course_utils.doctor.parts import batch_size, clone_tree, named_leaves, take
from course_utils.ledger import OWNERS, Ledger, recording_memory
from course_utils.text import human_bytes

SMALLER = 5  # times that the batch is halved in search of one that fits


@explains(r"OutOfMemoryError|out of memory|DefaultCPUAllocator: can't allocate|not enough memory")
def out_of_memory(case: Case) -> Explanation:
    """Say who owned the memory when the step failed, and how large a batch may be."""
    ledger = _ledger(case)
    rows = {owner: getattr(ledger, owner) for owner in OWNERS}
    parts = [f"{owner.replace('_', ' ')} {human_bytes(size)}" for owner, size in rows.items()]
    most = max(rows, key=rows.__getitem__)
    size = batch_size(case.batch) if case.batch is not None else None
    fits, activations = _smaller(case, size) if size is not None else (None, 0)
    evidence: dict[str, Any] = {f"{owner}_bytes": value for owner, value in rows.items()}
    evidence |= {"batch_size": size} if size is not None else {}
    message = f"The device has no memory left. Alive when it failed: {', '.join(parts)}; most are {_words(most)}."
    if fits is not None and size:
        message += (
            f" A batch of {fits} ran, with {human_bytes(activations)} of activations, "
            f"{human_bytes(activations / fits)} for each example; this batch has {size}."
        )
        evidence |= {"batch_that_ran": fits, "activation_bytes_there": activations}
    fix = {
        "optimizer_state": "torch.optim.SGD(model.parameters(), lr)  # keeps nothing; Adam keeps two copies",
        "parameters": "a smaller model, or frozen parts: p.requires_grad_(False)",
    }.get(most, f"DataLoader(data, batch_size={fits or 'a smaller one'}), and accumulate gradients over "
        "several batches; torch.utils.checkpoint and autocast keep fewer activations")  # fmt: skip
    return Explanation("out-of-memory", message, fix, evidence)


def _words(owner: str) -> str:
    return {"other": "temporary tensors, buffers and the batch"}.get(owner, owner.replace("_", " "))


def _ledger(case: Case) -> Ledger:
    """Run the failing code again and return who owned what when most was alive."""
    examination = case.examination
    model, again = examination.parts.model, case.failure.again
    optimizer = examination.optimizers[0] if examination.optimizers else None
    found: list[Ledger] = []

    def go() -> None:
        with recording_memory(model, optimizer) as memory:
            try:
                again()
            finally:
                found.append(memory.at_peak())

    if again is not None:
        examination.run(go, 0.2)
    return found[0] if found else Ledger()


def _smaller(case: Case, size: int) -> tuple[int | None, int]:
    """Return the largest halved batch that runs, and the bytes of its activations."""
    examination = case.examination
    parts = examination.parts
    for halvings in range(1, SMALLER + 1):
        count = size >> halvings
        if not count:
            break
        found: list[Ledger] = []

        def go(count: int = count, found: list[Ledger] = found) -> None:
            batch = take(clone_tree(case.batch), slice(0, count), size)
            with recording_memory(parts.model, examination.optimizers[0] if examination.optimizers else None) as memory:
                parts.run_step(batch)
            found.append(memory.most())

        if examination.run(go, 0.2).is_done and found:
            return count, found[0].activations
    return None, 0


@explains(r"device-side assert")
def device_assert(case: Case) -> Explanation:
    return Explanation(
        "device-assert", "A kernel on the GPU met a value that it does not allow, mostly a class or an index out of "
        f"range; the line that is named{case.at} may be a later one. The process's GPU is lost until it restarts.",
        "run the same batch on the CPU: its message names the value; or CUDA_LAUNCH_BLOCKING=1",
        {"batch": case.batch_text},
    )  # fmt: skip


@explains(r"no NVIDIA driver|not compiled with CUDA|No CUDA GPUs|Torch not compiled|invalid device ordinal")
def no_cuda(case: Case) -> Explanation:
    return Explanation(
        "no-cuda", f"The code asks for a GPU that is not here{case.at}.",
        'device = "cuda" if torch.cuda.is_available() else "cpu"',
    )  # fmt: skip


@explains(r"same device|different device|Expected all tensors|on device \S+ is not on|is on cpu|"
          r"should be the same.*cuda|torch\.cuda\.\w+Tensor\) and weight type \(torch\.\w+Tensor")  # fmt: skip
def two_devices(case: Case) -> Explanation:
    model = case.examination.parts.model
    parameters = sorted({str(t.device) for t in [*model.parameters(), *model.buffers()]}) if model is not None else []
    batch = {name: str(leaf.device) for name, leaf in named_leaves(case.batch, "batch")}
    hidden = [h.name for h in case.examination.hidden if str(h.tensor.device) not in parameters]
    met = {(o.name or "a passing value", o.device) for o in case.scene.operands if o.shape or o.device != "cpu"}
    seen = ", ".join(f"{name} is on {device}" for name, device in sorted(met)[:4])
    message = f"Tensors on different devices meet in {case.where}: " + (seen or case.first_line)
    message += f"; the parameters are on {', '.join(parameters)}." if parameters else "."
    fix = "x, y = x.to(device), y.to(device)  # Tensor.to returns a copy, it moves nothing in place"
    if hidden:
        message += f" {', '.join(hidden)} was not moved with the model: it is neither parameter nor buffer."
        fix = 'self.register_buffer("name", tensor)  # moves with the model'
    elif len(parameters) > 1:
        fix = "model.to(device)  # the whole of it, before the optimizer is built"
    evidence = {"parameters": parameters, **batch, "met": sorted({device for _, device in met}), **case.shapes}
    return Explanation("device-mismatch", message, fix, evidence)


@explains(r"Cannot copy out of meta tensor|meta tensor|no data!")
def meta(case: Case) -> Explanation:
    model = case.examination.parts.model
    empty = [n for n, p in model.named_parameters() if p.is_meta] if model is not None else []
    return Explanation(
        "no-data", f"A tensor on the meta device has a shape and no values{case.at}."
        + (f" Parameters without values: {', '.join(empty[:4])}." if empty else ""),
        "model.to_empty(device=device); model.load_state_dict(state)  # or build the model on the real device",
        {"parameters_without_values": len(empty)},
    )  # fmt: skip
