"""Checkpoints that don't fit."""

from __future__ import annotations

import re

from course_utils.doctor.explain import Case, Explanation, explains


@explains(r"Error\(s\) in loading state_dict for (\w+)")
def state_dict(case: Case) -> Explanation:
    text = case.text
    missing = _quoted(re.search(r"Missing key\(s\) in state_dict: ([^\n]*)", text))
    unexpected = _quoted(re.search(r"Unexpected key\(s\) in state_dict: ([^\n]*)", text))
    sizes = re.findall(r"size mismatch for (\S+): copying a param with shape torch\.Size\((\[[^\]]*\])\) from "
                       r"checkpoint, the shape in current model is torch\.Size\((\[[^\]]*\])\)", text)  # fmt: skip
    parts = []
    if missing:
        parts.append(f"the model has {_some(missing)}, which the checkpoint lacks")
    if unexpected:
        parts.append(f"the checkpoint has {_some(unexpected)}, which the model lacks")
    parts += [f"{name} is {given} in the checkpoint and {own} in the model" for name, given, own in sizes[:3]]
    fix = "build the model with the settings that it was saved with"
    prefix = _prefix(missing, unexpected)
    if prefix and prefix[0] == "strip":
        fix = f"state = {{name.removeprefix({prefix[1]!r}): value for name, value in state.items()}}"
    elif prefix:
        fix = f"state = {{{prefix[1]!r} + name: value for name, value in state.items()}}"
    elif sizes and not missing and not unexpected:
        fix = f"state.pop({sizes[0][0]!r}); model.load_state_dict(state, strict=False)  # a new head starts anew"
    elif {name for name in unexpected if name in ("model", "optimizer", "state_dict", "epoch")}:
        name = next(name for name in ("model", "state_dict", *unexpected) if name in unexpected)
        fix = f"model.load_state_dict(checkpoint[{name!r}])"
    return Explanation(
        "state-dict-mismatch", f"Checkpoint and {case.match[1]} do not fit: {'; '.join(parts) or case.first_line}.",
        fix,
        {"missing": missing[:8], "unexpected": unexpected[:8], "other_sizes": [name for name, _, _ in sizes[:8]]},
    )  # fmt: skip


def _quoted(match: re.Match[str] | None) -> list[str]:
    return re.findall(r'"([^"]+)"', match[1]) if match else []


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _prefix(missing: list[str], unexpected: list[str]) -> tuple[str, str] | None:
    """Return what must be stripped from the checkpoint's names, or put before them, if that explains it."""
    if not missing or not unexpected:
        return None
    for kind, longer, shorter in (("strip", unexpected, missing), ("add", missing, unexpected)):
        for name in longer[:3]:
            for other in shorter:
                if name.endswith("." + other):
                    prefix = name.removesuffix(other)
                    if all(prefix + each in longer for each in shorter):
                        return kind, prefix
    return None


@explains(r"loaded state dict contains a parameter group|loaded state dict has a different number of parameter groups")
def optimizer_state(case: Case) -> Explanation:
    return Explanation(
        "optimizer-state-mismatch", f"The optimizer's state was saved for other parameters{case.at}: "
        f"{case.first_line}.",
        "freeze and group the parameters as before, then optimizer.load_state_dict(…)",
    )  # fmt: skip


@explains(r"Expected state_dict to be dict-like, got <class '([^']+)'>")
def no_state(case: Case) -> Explanation:
    return Explanation(
        "not-a-state", f"load_state_dict gets a {case.match[1].rpartition('.')[2]}, not a dict of tensors{case.at}.",
        "model.load_state_dict(saved.state_dict())",
    )  # fmt: skip


@explains(r"Weights only load failed|weights_only")
def unpickle(case: Case) -> Explanation:
    return Explanation(
        "checkpoint-holds-objects", "The checkpoint holds pickled Python objects, and torch.load takes only tensors "
        f"and plain values{case.at}.",
        "torch.save(model.state_dict(), path)  # not the model itself",
    )  # fmt: skip


@explains(r"FileNotFoundError|No such file or directory: '([^']*)'")
def no_file(case: Case) -> Explanation:
    return Explanation(
        "no-file", f"{case.first_line}{case.at}.", "Path(__file__).parent / name  # not the folder it is started from",
    )  # fmt: skip
