"""Find what modules hold without registering it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

_DEPTH = 4


@dataclass(frozen=True)
class Hidden:
    """A tensor that a module holds and ``parameters()`` and ``buffers()`` do not see.

    Args:
        name: path to it, ``hidden[0].weight``.
        tensor: itself.
        holder: path of the attribute, ``hidden``.
        container: type of what holds it, ``list``; ``attribute`` for a plain tensor attribute.
        is_parameter: whether it is an nn.Parameter, perhaps of a hidden module.
        module: the hidden module it belongs to.
    """

    name: str
    tensor: Tensor
    holder: str
    container: str
    is_parameter: bool
    module: nn.Module | None = None


def hidden_tensors(model: nn.Module) -> list[Hidden]:
    """Return the tensors in attributes, lists, dicts and plain objects that the model does not register."""
    known = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    modules = {id(module) for module in model.modules()}
    found: dict[int, Hidden] = {}
    for prefix, module in model.named_modules():
        skip = ("_parameters", "_buffers", "_modules")
        for name, value in vars(module).items():
            if name in skip or name.endswith("_hooks") or name.startswith("_flat_weights"):
                continue
            path = f"{prefix}.{name}" if prefix else name
            for hidden in _inside(value, path, path, "attribute", modules, _DEPTH, set()):
                if id(hidden.tensor) not in known:
                    found.setdefault(id(hidden.tensor), hidden)
    return list(found.values())


def _inside(
    value: Any, name: str, holder: str, container: str, modules: set[int], depth: int, seen: set[int]
) -> Iterator[Hidden]:
    if depth < 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield Hidden(name, value, holder, container, isinstance(value, nn.Parameter))
    elif isinstance(value, nn.Module):
        if id(value) in modules:
            return
        for own, tensor in [*value.named_parameters(), *value.named_buffers()]:
            yield Hidden(f"{name}.{own}", tensor, holder, container, isinstance(tensor, nn.Parameter), value)
        for below, module in value.named_modules():
            path = f"{name}.{below}" if below else name
            for own, deeper in vars(module).items():
                if own not in ("_parameters", "_buffers", "_modules") and not own.endswith("_hooks"):
                    yield from _inside(deeper, f"{path}.{own}", holder, container, modules, depth - 1, seen)
    elif isinstance(value, Mapping):
        for key, item in list(value.items())[:1000]:
            yield from _inside(item, f"{name}[{key!r}]", holder, _outer(container, "dict"), modules, depth - 1, seen)
    elif isinstance(value, (list, tuple)):
        kind = _outer(container, type(value).__name__)
        for index, item in enumerate(value[:1000]):
            yield from _inside(item, f"{name}[{index}]", holder, kind, modules, depth - 1, seen)
    elif hasattr(value, "__dict__") and not callable(value) and not isinstance(value, type):
        kind = _outer(container, type(value).__name__)
        for own, item in list(vars(value).items())[:100]:
            yield from _inside(item, f"{name}.{own}", holder, kind, modules, depth - 1, seen)


def _outer(container: str, kind: str) -> str:
    return kind if container == "attribute" else container
