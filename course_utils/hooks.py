"""Look inside a model without changing it: hooks that always come off again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from course_utils.errors import CourseError
from course_utils.text import did_you_mean


class UnknownLayerError(CourseError):
    """A layer was asked for that the model does not have."""

    @classmethod
    def from_name(cls, name: str, layers: dict[str, nn.Module]) -> UnknownLayerError:
        known = [known for known in layers if known]
        return cls(
            f"This model has no layer called {name!r}.",
            got=name,
            expected="one of " + ", ".join(map(repr, known)),
            fix=did_you_mean(name, known),
        )


def _layers(model: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Module]:
    """Return the named layers, or every layer without children if no name is given."""
    layers = dict(model.named_modules())
    if not names:
        return {name: layer for name, layer in layers.items() if name and not list(layer.children())}
    for name in names:
        if name not in layers:
            raise UnknownLayerError.from_name(name, layers)
    return {name: layers[name] for name in names}


@contextmanager
def _watching(
    model: nn.Module, names: tuple[str, ...], note: Callable[[Tensor, list[Tensor]], None]
) -> Iterator[dict[str, list[Tensor]]]:
    """Call ``note(output, record of its layer)`` for each tensor that a named layer returns in the block."""
    layers = _layers(model, names)
    records: dict[str, list[Tensor]] = {name: [] for name in layers}
    with ExitStack() as attached:
        for name, layer in layers.items():

            def hook(_layer: nn.Module, _inputs: Any, output: Any, seen: list[Tensor] = records[name]) -> None:
                if isinstance(output, Tensor):
                    note(output, seen)

            attached.callback(layer.register_forward_hook(hook).remove)
        yield records


@contextmanager
def recording(model: nn.Module, *names: str) -> Iterator[dict[str, list[Tensor]]]:
    """Record the outputs of named layers (of all leaf layers without names) for every forward in the block.

    The tensors are detached copies. Layers whose output is not a tensor are left out.

    Raises:
        UnknownLayerError: if the model has no layer of that name.
    """

    def keep(output: Tensor, seen: list[Tensor]) -> None:
        seen.append(output.detach().clone())  # clone: later in-place ops would rewrite it

    with _watching(model, names, keep) as records:
        yield records


@contextmanager
def recording_gradients(model: nn.Module, *names: str) -> Iterator[dict[str, list[Tensor]]]:
    """Record the gradient of the loss with respect to each named layer's output, for every backward in the block.

    Raises:
        UnknownLayerError: if the model has no layer of that name.
    """

    def await_gradient(output: Tensor, seen: list[Tensor]) -> None:
        if output.requires_grad:
            output.register_hook(lambda grad: seen.append(grad.detach().clone()))

    with _watching(model, names, await_gradient) as records:
        yield records


def gradient_norms(model: nn.Module) -> dict[str, float]:
    """Return the L2 norm of each parameter's gradient by name; parameters without a gradient are left out."""
    return {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None}


def hook_count(model: nn.Module) -> int:
    """Return how many hooks are registered on a model's modules; 0 is what a recorder must leave behind."""
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
    return sum(len(getattr(module, table)) for module in model.modules() for table in tables)
