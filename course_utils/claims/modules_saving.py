"""Lesson 03, the part about saving and loading: what is in a checkpoint, and what fits which model."""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Callable, Mapping
from copy import deepcopy
from unittest import mock

import torch
from torch import Tensor, nn

from course_utils.claims.evidence import WORKS, attempt
from course_utils.claims.ledger import Evidence, Page
from course_utils.claims.verdicts import CAVEAT, FALSE, OPINION, TRUE
from course_utils.memory import shares_storage

PAGE = Page("modules")
SAVING = "notes/serialization.html"


def file_of(thing: object) -> bytes:
    """Return what ``torch.save`` writes."""
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def load(content: bytes, **options: object) -> object:
    """Return what ``torch.load`` reads."""
    return torch.load(io.BytesIO(content), **options)


def outcome(action: Callable[[], object]) -> str:
    """Return ``works``, or the kind of the error without its message."""
    return attempt(action).partition(":")[0]


# --- What is saved ---------------------------------------------------------------------------------------------------


@PAGE.claim(
    "M022",
    "Save and load state_dict rather than pickling the whole model with torch.save(model).",
    rule=lambda seen: (
        OPINION if seen["loading the whole model"] == WORKS else TRUE if seen["loading the state_dict"] == WORKS
        else FALSE
    ),
    right="This version loads both by default; which one is better depends on who must read the file, and on whether "
    "you trust it.",
    page=SAVING,
)  # fmt: skip
@PAGE.claim(
    "M023",
    "Pickling a whole model makes a much larger file than its state_dict.",
    rule=lambda seen: TRUE if seen["bytes, whole model"] > 1.5 * seen["bytes, state_dict"] else FALSE,
    right="Both hold the same tensors; the rest is a few hundred bytes for each layer.",
    page=SAVING,
)
def saving_a_model_in_two_ways() -> Evidence:
    model = nn.Sequential(nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
    whole, state = file_of(model), file_of(model.state_dict())
    return {
        "bytes, whole model": len(whole),
        "bytes, state_dict": len(state),
        "loading the whole model": outcome(lambda: load(whole)),
        "loading the whole model, weights_only=False": outcome(lambda: load(whole, weights_only=False)),
        "loading the state_dict": outcome(lambda: load(state)),
    }


@PAGE.claim(
    "M024",
    "Whole-model pickles need importable classes and can break after refactoring.",
    rule=lambda seen: TRUE if WORKS not in (seen["class renamed"], seen["module gone"]) else FALSE,
    right="On this version they survive it.",
    page=SAVING,
)
def a_whole_model_after_refactoring() -> Evidence:
    name = "claims_models_of_last_year"
    module = sys.modules[name] = types.ModuleType(name)
    try:
        module.Net = type("Net", (nn.Linear,), {"__module__": name})
        content = file_of(module.Net(2, 2))
        seen = {"as saved": outcome(lambda: load(content, weights_only=False))}
        module.Network = module.__dict__.pop("Net")
        seen["class renamed"] = outcome(lambda: load(content, weights_only=False))
    finally:
        del sys.modules[name]
    return {**seen, "module gone": outcome(lambda: load(content, weights_only=False))}


@PAGE.claim(
    "M027",
    "torch.save returns the object that it saved, so it can be assigned on the same line.",
    rule=lambda seen: TRUE if seen["returns the object"] else FALSE,
    right="It returns None: `model = torch.save(model, path)` loses the model.",
    page="generated/torch.save.html",
)
def result_of_save() -> Evidence:
    thing = {"weight": torch.ones(2)}
    result = torch.save(thing, io.BytesIO())
    return {"returns": type(result).__name__, "returns the object": result is thing}


@PAGE.claim(
    "M028",
    "state_dict() is a snapshot: holding on to the returned dict preserves the parameter values of that moment.",
    rule=lambda seen: TRUE if seen["held dict, after a step"] == seen["at the moment"] else FALSE,
    right="It holds the parameters' own memory and changes with every step: keep deepcopy(model.state_dict()), or save "
    "it to a file.",
    page="generated/torch.nn.Module.html#torch.nn.Module.state_dict",
)
def holding_a_state_dict() -> Evidence:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    held, copied = model.state_dict(), deepcopy(model.state_dict())
    model(torch.ones(1, 1)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    return {
        "at the moment": 1.0,
        "held dict, after a step": held["weight"].item(),
        "deepcopy, after a step": copied["weight"].item(),
        "shares memory with the model": shares_storage(held["weight"], model.weight),
    }


# --- Devices in files ------------------------------------------------------------------------------------------------


def file_from(device: str, thing: object) -> bytes:
    """Return the file that ``torch.save`` would write if the tensors were on ``device``: the bytes are the same, and
    each storage is labelled with where it was."""
    with mock.patch("torch.serialization.location_tag", return_value=device):
        return file_of(thing)


@PAGE.claim(
    "M025",
    "Loading a GPU-saved checkpoint on a CPU-only machine without map_location fails.",
    rule=lambda seen: TRUE if seen["saved on cuda:0, no map_location"] != WORKS else FALSE,
    right="On this version it loads.",
    page="generated/torch.load.html",
)
def a_file_from_a_gpu_on_a_machine_without() -> Evidence:
    content = file_from("cuda:0", {"weight": torch.ones(3)})
    with mock.patch("torch.cuda.is_available", return_value=False):
        return {
            "saved on cuda:0, no map_location": attempt(lambda: load(content)),
            "saved on cuda:0, map_location='cpu'": attempt(lambda: load(content, map_location="cpu")),
        }


@PAGE.claim(
    "M026",
    "A checkpoint saved on a CPU cannot be loaded on a GPU machine without map_location.",
    rule=lambda seen: FALSE if seen["saved on the CPU, no map_location"] == WORKS else TRUE,
    right="It loads, into CPU tensors: without map_location each tensor goes back to the kind of device it came from. "
    "load_state_dict then copies the values to the model's device.",
    page="generated/torch.load.html",
)
def a_file_from_a_cpu_on_a_machine_with_a_gpu() -> Evidence:
    content = file_of({"weight": torch.ones(3)})
    with mock.patch("torch.cuda.is_available", return_value=True):
        state: list[Mapping[str, Tensor]] = []
        seen = attempt(lambda: state.append(load(content)))
    return {
        "saved on the CPU, no map_location": seen,
        "device after loading": state[0]["weight"].device.type if state else "none",
    }


# --- What fits -------------------------------------------------------------------------------------------------------


@PAGE.claim(
    "M005",
    "Reordering the layer definitions in the model makes load_state_dict fail with a mismatch error.",
    rule=lambda seen: FALSE if seen["attributes in another order"] == WORKS and seen["same outputs"] else TRUE,
    right="Values are found by name, not by place. Order matters where the name is the place, as in nn.Sequential; "
    "there, layers of equal shape are even swapped without an error.",
    page="generated/torch.nn.Module.html#torch.nn.Module.load_state_dict",
)
def layers_in_another_order() -> Evidence:
    class Net(nn.Module):
        def __init__(self, names: str) -> None:
            super().__init__()
            for name in names:
                setattr(self, name, nn.Linear(3, 3) if name == "a" else nn.Linear(3, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    first, second, x = Net("ab"), Net("ba"), torch.randn(4, 3)
    wide, flat = nn.Linear(3, 3), nn.Linear(3, 2)

    def swapped(one: nn.Module, other: nn.Module) -> str:
        state = nn.Sequential(one, other).state_dict()
        return outcome(lambda: nn.Sequential(deepcopy(other), deepcopy(one)).load_state_dict(state))

    return {
        "attributes in another order": attempt(lambda: second.load_state_dict(first.state_dict())),
        "same outputs": torch.equal(first(x), second(x)),
        "nn.Sequential in another order": swapped(wide, flat),
        "nn.Sequential in another order, equal shapes": swapped(wide, nn.Linear(3, 3)),
    }


@PAGE.claim(
    "M010",
    "Filtering the checkpoint by key and shape and updating model.state_dict() is the safest way to load pretrained "
    "weights.",
    rule=lambda seen: (
        FALSE if seen["prefixed names: filter and update"] == WORKS and not seen["prefixed names: tensors that fit"]
        else TRUE
    ),
    right="It hides every misfit: with names that all differ it loads nothing and says nothing. strict=True, the "
    "default, names each key; filter only what you expect to differ.",
    page="generated/torch.nn.Module.html#torch.nn.Module.load_state_dict",
)  # fmt: skip
@PAGE.claim(
    "M029",
    "For transfer learning filter non-matching keys and then load with strict=False.",
    rule=lambda seen: (
        FALSE if seen["another head: filter, strict=False"] != WORKS
        else CAVEAT if not seen["prefixed names: tensors that fit"]
        else TRUE
    ),
    right="Good if you look at what the call returns: missing_keys must hold the new head and nothing else. If the "
    "names differ by a prefix, nothing is loaded, and there is no error.",
    page="generated/torch.nn.Module.html#torch.nn.Module.load_state_dict",
)  # fmt: skip
def loading_what_fits() -> Evidence:
    old, new = (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, classes)) for classes in (10, 2))
    prefixed = {f"module.{key}": value for key, value in old.state_dict().items()}  # as DataParallel names them

    def fitting(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = new.state_dict()
        return {key: value for key, value in state.items() if key in own and own[key].shape == value.shape}

    return {
        "another head: tensors that fit": len(fitting(old.state_dict())),
        "another head: strict=False, no filter": outcome(lambda: new.load_state_dict(old.state_dict(), strict=False)),
        "another head: filter, strict=False": outcome(
            lambda: new.load_state_dict(fitting(old.state_dict()), strict=False)
        ),
        "prefixed names: tensors that fit": len(fitting(prefixed)),
        "prefixed names: filter and update": outcome(
            lambda: new.load_state_dict(new.state_dict() | fitting(prefixed))
        ),
        "prefixed names: strict": outcome(lambda: old.load_state_dict(prefixed)),
    }  # fmt: skip


@PAGE.claim(
    "M030",
    "To find out why a checkpoint does not load, printing the list of key names is enough; shapes need not be "
    "compared.",
    rule=lambda seen: FALSE if seen["same names"] and seen["load_state_dict"] != WORKS else TRUE,
    right="All names may agree and a shape differ, as with another number of classes. The error of load_state_dict "
    "lists both kinds.",
    page="generated/torch.nn.Module.html#torch.nn.Module.load_state_dict",
)
def equal_names_and_other_shapes() -> Evidence:
    saved, model = nn.Linear(4, 10), nn.Linear(4, 2)
    return {
        "same names": list(saved.state_dict()) == list(model.state_dict()),
        "load_state_dict": attempt(lambda: model.load_state_dict(saved.state_dict())),
    }
