"""Remember everything that the reader's code can reach, and put it back bit for bit.

The doctor runs the reader's own functions, which hold on to more than their arguments: a target network in a
closure, a list of losses, a counter in a module. Copies would not be those objects, so the doctor works on the
originals and rewinds them.
"""

from __future__ import annotations

import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MAX_OBJECTS = 200_000
MAX_BYTES = 2 * 1024**3  # of tensors and arrays that are kept a second time
BIG_BYTES = 32 * 1024**2  # above: rewound only at the end, and not between two experiments

_LEAVES = (
    str, bytes, int, float, complex, bool, type(None), types.ModuleType, types.CodeType, types.BuiltinFunctionType,
    torch.dtype, torch.device, torch.Size, torch.layout, range, slice,
)  # fmt: skip
_LIBRARIES = {"torch", "torchvision", "numpy", "matplotlib", "IPython", "ipykernel", "pytest", "_pytest", "builtins"}


@dataclass
class _Memory:
    """Bytes of one storage or array."""

    owner: Any  # an untyped storage, or an array
    content: Any
    size_bytes: int


@dataclass
class _TensorState:
    tensor: Tensor
    alias: Tensor | None  # the same storage and strides, detached: undoes `p.data = other`
    requires_grad: bool
    grad: Tensor | None
    version: int


@dataclass
class Snapshot:
    """Everything reachable from some objects, with its content at one moment.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> before = Snapshot.of(model)
        >>> with torch.no_grad():
        ...     _ = model.weight.zero_()
        >>> before.restore()
        >>> bool(model.weight.any())
        True
    """

    objects: dict[int, Any] = field(default_factory=dict)  # by id; also keeps them alive, so that ids stay theirs
    is_complete: bool = True
    _contents: list[tuple[Any, Any]] = field(default_factory=list)  # container, shallow copy
    _attributes: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    _cells: list[tuple[Any, Any]] = field(default_factory=list)
    _globals: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = field(default_factory=dict)
    _tensors: list[_TensorState] = field(default_factory=list)
    _memories: dict[tuple[str, int], _Memory] = field(default_factory=dict)
    _generators: list[tuple[Any, Any]] = field(default_factory=list)
    _process: dict[str, Any] = field(default_factory=dict)
    _bytes: int = 0

    @classmethod
    def of(cls, *roots: Any) -> Snapshot:
        """Take a snapshot of all that ``roots`` lead to, and of the process-wide random states and switches."""
        snapshot = cls()
        snapshot._process = process_state()
        snapshot._visit_all(roots)
        return snapshot

    def restore(self, *, all_memory: bool = True) -> None:
        """Put everything back.

        Args:
            all_memory: also tensors above 32 MiB, which take time; False between two experiments.
        """
        for container, content in self._contents:
            _refill(container, content)
        for owner, attributes in self._attributes:
            own = owner.__dict__
            if own.keys() != attributes.keys() or any(own[name] is not attributes[name] for name in own):
                own.clear()
                own.update(attributes)
        for cell, content in self._cells:
            cell.cell_contents = content
        for names, name, value in self._globals.values():
            if names.get(name) is not value:
                names[name] = value
        for state in self._tensors:
            _restore_tensor(state)
        for memory in self._memories.values():
            if all_memory or memory.size_bytes <= BIG_BYTES:
                _restore_memory(memory)
        for state in self._tensors:
            if state.tensor._version != state.version:
                torch._C._autograd._unsafe_set_version_counter((state.tensor,), (state.version,))
        for generator, state in self._generators:
            _set_generator_state(generator, state)
        restore_process(self._process)

    @property
    def lists(self) -> list[list[Any]]:
        """The lists that were met, in order."""
        return [container for container, _ in self._contents if isinstance(container, list)]

    @property
    def tables(self) -> list[dict[Any, Any]]:
        """The plain dicts of the reader that were met, in order; not the attributes of objects."""
        return [container for container, _ in self._contents if type(container) is dict and 0 < len(container) < 50]

    @property
    def owners(self) -> list[Any]:
        """The objects of the reader's own classes that have attributes, in order."""
        return [owner for owner, _ in self._attributes if not is_library(type(owner).__module__)]

    def global_values(self) -> list[tuple[str, Any]]:
        """Return the module-level variables that the reader's functions use, with the values they have now."""
        return [(name, names.get(name)) for names, name, _ in self._globals.values()]

    def version_of(self, tensor: Tensor) -> int | None:
        """Return the version that a tensor had, or None if it was not met."""
        return next((state.version for state in self._tensors if state.tensor is tensor), None)

    def keeps_storage_of(self, tensor: Tensor) -> bool:
        """Tell whether a tensor lies on a storage that could be reached when the snapshot was taken."""
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return False
        address = tensor.untyped_storage().data_ptr()
        return (str(tensor.device), address) in self._memories or ("numpy", address) in self._memories

    def changed_arrays(self) -> list[int]:
        """Return the sizes in bytes of storages and arrays whose bytes differ from the snapshot."""
        return [memory.size_bytes for memory in self._memories.values() if not _same_memory(memory)]

    def found(self, kind: type) -> list[Any]:
        """Return the reachable objects of a type, in the order in which they were met."""
        return [value for value in self.objects.values() if isinstance(value, kind)]

    # How objects are walked.

    def _visit_all(self, roots: Iterable[Any]) -> None:
        waiting = deque(roots)
        while waiting:
            value = waiting.popleft()
            if isinstance(value, _LEAVES) or id(value) in self.objects:
                continue
            if len(self.objects) >= MAX_OBJECTS:
                self.is_complete = False
                return
            self.objects[id(value)] = value
            waiting.extend(self._visit(value))

    def _visit(self, value: Any) -> Iterable[Any]:
        """Remember one object and return what it leads to."""
        if isinstance(value, Tensor):
            return self._visit_tensor(value)
        if isinstance(value, np.ndarray):
            self._keep_array(value)
            return list(value.flat)[:MAX_OBJECTS] if value.dtype == object else ()
        if isinstance(value, torch.Generator):
            self._generators.append((value, value.get_state()))
            return ()
        if isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
            self._generators.append((value, _generator_state(value)))
            return ()
        if isinstance(value, dict):
            self._contents.append((value, dict(value)))
            leads = [*value.keys(), *value.values()]
            return [*leads, *self._attributes_of(value)]
        if isinstance(value, (list, deque, set, bytearray)):
            self._contents.append((value, type(value)(value) if type(value) in (list, set, bytearray) else list(value)))
            return [*value, *self._attributes_of(value)]
        if isinstance(value, (tuple, frozenset)):
            return value
        if isinstance(value, types.FunctionType):
            return self._visit_function(value)
        if isinstance(value, types.MethodType):
            return (value.__self__, value.__func__)
        if isinstance(value, partial):
            return (value.func, value.args, value.keywords)
        if isinstance(value, type):
            return self._visit_class(value)
        return [*self._attributes_of(value), *self._slots_of(value), *self._class_of(value)]

    def _visit_tensor(self, tensor: Tensor) -> Iterable[Any]:
        grad = tensor.grad if tensor.is_leaf else None
        alias = None
        try:
            if tensor.is_leaf and tensor.layout == torch.strided:
                alias = tensor.detach()
            self._keep_storage(tensor)
            self._tensors.append(_TensorState(tensor, alias, tensor.requires_grad, grad, tensor._version))
        except (RuntimeError, NotImplementedError):  # meta, sparse and wrapped tensors have no bytes of their own
            pass
        leads: list[Any] = [] if grad is None else [grad]
        if tensor.layout == torch.sparse_coo:
            leads += [tensor._values(), tensor._indices()]
        return [*leads, *self._attributes_of(tensor)]

    def _keep_storage(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        key = (str(tensor.device), storage.data_ptr())
        if storage.nbytes() and key not in self._memories and self._may_keep(storage.nbytes()):
            self._memories[key] = _Memory(storage, storage.clone(), storage.nbytes())

    def _keep_array(self, array: np.ndarray) -> None:
        if isinstance(array, np.memmap) or array.dtype == object or not array.flags.writeable:
            return
        key = ("numpy", array.__array_interface__["data"][0])
        is_known = key in self._memories or ("cpu", key[1]) in self._memories
        if array.nbytes and not is_known and self._may_keep(array.nbytes):
            self._memories[key] = _Memory(array, array.copy(), array.nbytes)

    def _may_keep(self, size_bytes: int) -> bool:
        if self._bytes + size_bytes > MAX_BYTES:
            self.is_complete = False
            return False
        self._bytes += size_bytes
        return True

    def _visit_function(self, function: types.FunctionType) -> Iterable[Any]:
        leads: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for cell in function.__closure__ or ():
            try:
                self._cells.append((cell, cell.cell_contents))
                leads.append(cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        if not is_library(function.__module__):
            leads += self._globals_of(function.__code__, function.__globals__)
        return [*leads, *self._attributes_of(function)]

    def _globals_of(self, code: types.CodeType, names: dict[str, Any]) -> Iterable[Any]:
        for name in code.co_names:
            if name in names and not isinstance(names[name], types.ModuleType):
                self._globals.setdefault((id(names), name), (names, name, names[name]))
                yield names[name]
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from self._globals_of(constant, names)

    def _attributes_of(self, value: Any) -> Iterable[Any]:
        own = getattr(value, "__dict__", None)
        if not isinstance(own, dict) or isinstance(value, type):
            return ()
        self._attributes.append((value, dict(own)))
        return list(own.values())

    def _slots_of(self, value: Any) -> Iterable[Any]:
        names = [name for kind in type(value).__mro__ for name in _slot_names(kind)]
        return [getattr(value, name, None) for name in names]

    def _class_of(self, value: Any) -> Iterable[Any]:
        return [kind for kind in type(value).__mro__ if not is_library(kind.__module__)]

    def _visit_class(self, kind: type) -> Iterable[Any]:
        """Look at the methods and mutable attributes of a class that the reader wrote."""
        if is_library(kind.__module__):
            return ()
        functions = [getattr(value, "__func__", value) for value in vars(kind).values()]
        wanted = (types.FunctionType, list, dict, set, Tensor, np.ndarray)
        return [value for value in functions if isinstance(value, wanted)]


def is_library(module: str | None) -> bool:
    """Tell whether a module is part of Python, PyTorch or the doctor, and not of the reader's program."""
    top = (module or "builtins").partition(".")[0]
    if module is not None and module.startswith("course_utils.doctor"):
        return True
    return top in _LIBRARIES or (top in sys.stdlib_module_names and top != "__main__")


def process_state() -> dict[str, Any]:
    """Return the random states and switches that belong to the whole process."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None,
        "numpy": np.random.get_state(),
        "random": random.getstate(),
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "threads": torch.get_num_threads(),
        "matmul": torch.get_float32_matmul_precision(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
    }


def restore_process(state: dict[str, Any]) -> None:
    """Put back what ``process_state`` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state_all(state["cuda"])
    np.random.set_state(state["numpy"])
    random.setstate(state["random"])
    torch.set_grad_enabled(state["grad"])
    torch.set_default_dtype(state["dtype"])
    is_on, warns_only = state["deterministic"]
    if (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()) != (
        is_on,
        warns_only,
    ):
        torch.use_deterministic_algorithms(is_on, warn_only=warns_only)
    torch.autograd.set_detect_anomaly(*state["anomaly"])
    if torch.get_num_threads() != state["threads"]:
        torch.set_num_threads(state["threads"])
    if torch.get_float32_matmul_precision() != state["matmul"]:
        torch.set_float32_matmul_precision(state["matmul"])
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = state["cudnn"]


def _slot_names(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    if is_library(kind.__module__):
        return []
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, dict):
        same = len(container) == len(content) and all(
            key is other and value is content[other]
            for (key, value), other in zip(container.items(), content, strict=True)
        )
        if not same:
            plain = (
                OrderedDict if isinstance(container, OrderedDict) else dict
            )  # what a subclass overrides is not asked
            plain.clear(container)
            plain.update(container, content)
    elif isinstance(container, (list, deque)):
        if len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
            container.clear()
            container.extend(content)
    elif isinstance(container, bytearray):
        container[:] = content
    elif container != content:
        container.clear()
        container.update(content)


def _restore_tensor(state: _TensorState) -> None:
    tensor, alias = state.tensor, state.alias
    if alias is not None and not tensor.is_leaf and not tensor._is_view():  # `buffer += loss` put it into a graph
        tensor.detach_()
    if alias is not None and not _same_view(tensor, alias):
        tensor.data = alias
    if tensor.is_leaf and tensor.requires_grad != state.requires_grad:
        tensor.requires_grad_(state.requires_grad)
    if tensor.is_leaf and tensor.grad is not state.grad:
        tensor.grad = state.grad


def _same_view(tensor: Tensor, alias: Tensor) -> bool:
    return (
        tensor.dtype == alias.dtype
        and tensor.device == alias.device
        and tensor.shape == alias.shape
        and tensor.stride() == alias.stride()
        and tensor.data_ptr() == alias.data_ptr()
    )


def _restore_memory(memory: _Memory) -> None:
    if isinstance(memory.owner, np.ndarray):
        memory.owner[...] = memory.content
        return
    if memory.owner.nbytes() != memory.size_bytes:
        memory.owner.resize_(memory.size_bytes)
    memory.owner.copy_(memory.content)


def _same_memory(memory: _Memory) -> bool:
    if isinstance(memory.owner, np.ndarray):
        return memory.owner.tobytes() == memory.content.tobytes()
    if memory.owner.nbytes() != memory.size_bytes:
        return False
    first, second = (torch.empty(0, dtype=torch.uint8, device=s.device).set_(s) for s in (memory.owner, memory.content))
    return torch.equal(first, second)


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()


def _set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)


def modules_in(snapshot: Snapshot) -> list[nn.Module]:
    """Return every module that the snapshot reached."""
    return snapshot.found(nn.Module)
