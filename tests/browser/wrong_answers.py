"""One plausible wrong answer for the first exercise of each lesson, as a learner types it, and words of its message."""

from __future__ import annotations

WRONG = {
    "00_start": ("start.mean-squared-error", "lambda p, t: (p - t).mean()", "cancel"),
    "01_tensors": ("tensors.energy", "lambda images: (images * images).float().mean((1, 2))", "20 * 20 became 144"),
    "02_autograd": ("autograd.operations", "lambda y: [type(y.grad_fn).__name__]", "next_functions lead on"),
    "03_modules": ("modules.standardize", "lambda mean, std: nn.Identity()", "not right yet"),
    "04_data": (
        "data.list-images",
        "lambda root: [(p, k) for k, d in enumerate(sorted(Path(root).iterdir())) for p in sorted(d.glob('*'))]",
        "notes.txt is no image",
    ),
    "05_training": (
        "training.two-losses",
        "lambda s, y, e, t: (F.cross_entropy(s.softmax(1), y),"
        " F.binary_cross_entropy_with_logits(e.squeeze(1), t.float()))",
        "You applied it twice",
    ),
    "06_memory": (
        "memory.owners",
        "lambda m, o: dict.fromkeys(['parameters', 'gradients', 'optimizer_state'],"
        " sum(p.numel() for p in m.parameters()))",
        "numbers, not bytes",
    ),
    "07_distributed": (
        "distributed.around",
        "lambda tensor, dist: [tensor] * dist.get_world_size()",
        "stands at place k of the list",
    ),
    "08_export": ("export.self-contained", "lambda model, mean, std: model", "not right yet"),
    "09_capstone": ("capstone.unusable", "lambda x: x.isnan().flatten(1).any(1)", "finds every blank one"),
}
