"""Rules about saved and loaded states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from course_utils.doctor.findings import ERROR, NOTE, WARNING, Seen, rule
from course_utils.doctor.history import Loading, loading_of

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@rule(
    "checkpoint.nothing-loaded", ERROR, "05_training",
    title="load_state_dict(strict=False) loaded nothing, or little.",
    looks="the names in the checkpoint and in the model at the last load_state_dict since the import of the doctor.",
    quiet="a new head (its names are missing, the rest match) is how fine-tuning looks; strict loading raises by "
    "itself.",
    fix='model.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})',
)  # fmt: skip
def nothing_loaded(examination: Examination) -> Iterator[Seen]:
    for module in examination.modules:
        loading = loading_of(module)
        if loading is None or loading.strict or not loading.given or not loading.own:
            continue
        prefix = _prefix(loading)
        if loading.matched == 0:
            yield Seen(
                f"load_state_dict(strict=False) matched 0 of {len(loading.own)} names"
                + (
                    f": the checkpoint's names begin with {prefix!r}."
                    if prefix
                    else f" (the checkpoint has {loading.given[0]!r})."
                )
                + " The model still has its random weights.",
                {"matched": 0, "in_checkpoint": len(loading.given), "in_model": len(loading.own)},
            )
        elif prefix:
            yield Seen(
                f"load_state_dict(strict=False) matched {loading.matched} of {len(loading.own)} names; without the "
                f"prefix {prefix!r} more would.",
                {"matched": loading.matched, "in_model": len(loading.own)}, severity=WARNING,
            )  # fmt: skip
        elif loading.matched < 0.5 * len(loading.own):
            yield Seen(
                f"load_state_dict(strict=False) matched {loading.matched} of {len(loading.own)} names.",
                {"matched": loading.matched, "in_model": len(loading.own)}, severity=NOTE,
            )  # fmt: skip


def _prefix(loading: Loading) -> str:
    """Return what must be taken off or put before the checkpoint's names for more of them to match."""
    own, given = set(loading.own), set(loading.given)
    best, prefix = loading.matched, ""
    for name in list(given)[:50]:
        for wanted in own:
            if name != wanted and name.endswith(wanted) and name[: -len(wanted)].endswith("."):
                candidate = name[: -len(wanted)]
                hits = sum(g.startswith(candidate) and g[len(candidate) :] in own for g in given)
                if hits > best:
                    best, prefix = hits, candidate
    return prefix


@rule(
    "checkpoint.wrapped-names", NOTE, "05_training",
    title="The state dict of a wrapper is saved under prefixed names.",
    looks="the names in the model's state dict: ``module.`` of DataParallel, ``_orig_mod.`` of compile.",
    quiet="models that name a part ``module`` themselves have other names beside it.",
    fix="torch.save(model.module.state_dict(), path)  # compiled: model._orig_mod.state_dict()",
)  # fmt: skip
def wrapped(examination: Examination) -> Iterator[Seen]:
    model = examination.model
    names = list(model.state_dict()) if model is not None else []
    for prefix in ("module.", "_orig_mod."):
        if names and all(name.startswith(prefix) for name in names):
            yield Seen(
                f"All names in the state dict begin with {prefix!r}: the bare model can't load it as it is.",
                {"names": len(names)},
            )


@rule(
    "checkpoint.optimizer-starts-anew", NOTE, "05_training",
    title="The weights come from a checkpoint, and the optimizer starts without its state.",
    looks="a load_state_dict of the trained model before the examination, and an optimizer with momentum or averages "
    "that holds none of them.",
    quiet="fine-tuning starts like this on purpose, so this is a note; optimizers without a state lose nothing.",
    fix='optimizer.load_state_dict(checkpoint["optimizer"])',
)  # fmt: skip
def optimizer_starts_anew(examination: Examination) -> Iterator[Seen]:
    for optimizer in examination.optimizers:
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if optimizer.state or not trained or not _keeps_state(optimizer):
            continue
        for module in examination.loaded:
            loading = loading_of(module)
            own = {id(p) for p in module.parameters()}
            if loading is not None and loading.matched == len(loading.own) and trained <= own:
                yield Seen(
                    f"All {len(loading.own)} values of the model were loaded, and {type(optimizer).__name__} starts "
                    "with an empty state. That is right for fine-tuning. A training that goes on needs the optimizer's "
                    "state too: without it the first steps are too large or too small.",
                    {"loaded": loading.matched, "state_entries": 0},
                )
                return


def _keeps_state(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimizer remembers anything from step to step."""
    if isinstance(optimizer, torch.optim.SGD):
        return any(group["momentum"] for group in optimizer.param_groups)
    return True
