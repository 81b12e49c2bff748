"""Look at an exception again: the layer, the function and the tensors that met when it came up."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from course_utils.doctor.parts import named_leaves
from course_utils.doctor.where import reader_frames

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@dataclass(frozen=True)
class Operand:
    """A tensor that a function was given when it failed.

    Args:
        name: of the parameter, the batch's tensor or the variable; empty for a passing value.
        shape: of the tensor.
        dtype: without ``torch.``.
        device: as text.
        is_parameter: whether the model or the loss holds it.
        least: smallest value of whole numbers, else None.
        most: largest value of whole numbers, else None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    is_parameter: bool = False
    least: int | None = None
    most: int | None = None

    def __str__(self) -> str:
        return f"{self.name or 'a tensor'} {self.shape}"


@dataclass
class Scene:
    """What stood where when an exception came up.

    Args:
        function: name of the PyTorch function that raised, empty if none did.
        operands: the tensors that it was given, in order.
        layer: name of the innermost module whose forward pass was running, the class for the model itself.
        module: that module.
        layer_inputs: the tensors that it was given.
        without_gradient: names of trainable parameters whose ``.grad`` was None.
        backwards: backward passes before.
        locals: in the reader's innermost line: variable, and what it is.
    """

    function: str = ""
    operands: tuple[Operand, ...] = ()
    layer: str = ""
    module: nn.Module | None = None
    layer_inputs: tuple[Operand, ...] = ()
    without_gradient: tuple[str, ...] = ()
    backwards: int = 0
    locals: dict[str, str] = field(default_factory=dict)


def look_again(examination: Examination, function: Callable[[], Any]) -> Scene:
    """Run the reader's code again until it fails, and return what was seen; an empty scene if it does not fail."""
    scene = Scene()
    watch = _Watch(examination, scene)

    def go() -> None:
        try:
            with watch:
                function()
        except Exception as error:
            watch.close(error)
            raise

    examination.run(go, 0.2)
    return scene


def kind_text(value: Any) -> str:
    """Return what a value is, in a few words: shape and dtype of a tensor, length and keys of a container."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, dict):
        return f"a dict with the keys {', '.join(map(repr, list(value)[:8]))}"
    if isinstance(value, (tuple, list)):
        kinds = ", ".join("a tensor" if isinstance(item, Tensor) else type(item).__name__ for item in value[:4])
        return f"a {type(value).__name__} of {len(value)} ({kinds}{', …' if len(value) > 4 else ''})"
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}" + (f" of shape {tuple(shape)}" if isinstance(shape, tuple) else "")


class _Watch(TorchFunctionMode):
    """Sees the functions of PyTorch, and remembers the one that raised."""

    def __init__(self, examination: Examination, scene: Scene) -> None:
        super().__init__()
        self.scene = scene
        self.model = examination.parts.model
        self.names = dict(examination.names)
        self.parameters = set(self.names)
        self.modules = {} if self.model is None else {id(m): name for name, m in self.model.named_modules()}
        self.stack: list[tuple[nn.Module, Any]] = []
        self.handles: list[Any] = []
        self.error: BaseException | None = None
        self.backward = torch.autograd.backward

    def __enter__(self) -> Any:
        self.handles = [
            module_hooks.register_module_forward_pre_hook(self._enter_module),
            module_hooks.register_module_forward_hook(self._leave_module),
        ]
        torch.autograd.backward = self._backward
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for handle in self.handles:
            handle.remove()
        torch.autograd.backward = self.backward
        super().__exit__(*error)

    def _enter_module(self, module: nn.Module, inputs: Any) -> None:
        if module is self.model:
            for name, leaf in named_leaves(inputs if len(inputs) != 1 else inputs[0], "the model's input"):
                self.names.setdefault(id(leaf), name)
        self.stack.append((module, inputs))

    def _leave_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        while self.stack and self.stack.pop()[0] is not module:
            pass

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        self.scene.backwards += 1
        return self.backward(*args, **kwargs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            if error is not self.error:
                self.error = error
                self._note(func, args, kwargs or {})
            raise

    def _note(self, func: Any, args: Any, kwargs: Any) -> None:
        scene = self.scene
        scene.function = getattr(func, "__name__", str(func))
        frames = reader_frames(sys._getframe(2))
        variables = {id(value): name for name, value in (frames[0].f_locals.items() if frames else ())}
        scene.operands = tuple(self._operand(leaf, variables) for leaf in _tensors((args, kwargs)))

    def close(self, error: BaseException) -> None:
        """Complete the scene when the exception has come out of the reader's code."""
        scene = self.scene
        chain = _chain(error)
        if self.error is not None and self.error not in chain:  # that one was caught
            scene.function, scene.operands = "", ()
        if self.stack:
            scene.module, inputs = self.stack[-1]
            name = self.modules.get(id(scene.module))
            scene.layer = name or type(scene.module).__name__
            scene.layer_inputs = tuple(self._operand(leaf, {}) for leaf in _tensors(inputs))
        if self.model is not None:
            named = self.model.named_parameters()
            scene.without_gradient = tuple(n for n, p in named if p.requires_grad and p.grad is None)
        frame = _innermost(error)
        if frame is not None:
            wanted = {*frame.f_code.co_varnames, *frame.f_code.co_freevars, *frame.f_code.co_cellvars}
            scene.locals = {n: kind_text(v) for n, v in frame.f_locals.items() if n in wanted and not callable(v)}

    def _operand(self, tensor: Tensor, variables: dict[int, str]) -> Operand:
        least = most = None
        name = self.names.get(id(tensor), variables.get(id(tensor), ""))
        whole = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
        if whole and not tensor.is_meta and 0 < tensor.numel() < 10**7:
            with contextlib.suppress(RuntimeError, NotImplementedError):
                least, most = int(tensor.detach().min()), int(tensor.detach().max())
        dtype = str(tensor.dtype).removeprefix("torch.")
        is_parameter = id(tensor) in self.parameters
        return Operand(name, tuple(tensor.shape), dtype, str(tensor.device), is_parameter, least, most)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)][:6]


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return chain


def _innermost(error: BaseException) -> Any:
    """Return the frame of the reader's innermost line in a traceback, or None."""
    from course_utils.doctor.where import is_reader_file

    found, trace = None, error.__traceback__
    while trace is not None:
        if is_reader_file(trace.tb_frame.f_code.co_filename):
            found = trace.tb_frame
        trace = trace.tb_next
    return found
