"""Calls with other arguments than a function takes, and names that don't exist."""

from __future__ import annotations

import inspect

from course_utils.doctor.explain import Case, Explanation, explains
from course_utils.doctor.scene import kind_text
from course_utils.text import did_you_mean


@explains(r"TypeError: (\w+)\(\): argument '(\w+)' \(position \d+\) must be Tensor, not ([\w.]+)")
def not_a_tensor(case: Case) -> Explanation:
    function, argument, kind = case.match.groups()
    fix = {
        "tuple": "out, state = self.rnn(x)  # recurrent layers and attention return two values",
        "dict": 'x = batch["x"]  # the entry, not the whole batch',
        "numpy.ndarray": "torch.from_numpy(x).float()",
        "list": "torch.stack(x)",
        "NoneType": "return x  # at the end of the forward before it",
    }.get(kind, "torch.as_tensor(x)")
    return Explanation(
        "not-a-tensor", f"In {case.where}, {function}() takes a tensor as {argument!r} and gets a {kind}."
        + case.variables(), fix, {"function": function, "got": kind},
    )  # fmt: skip


@explains(r"before Module\.__init__\(\) call")
def no_super(case: Case) -> Explanation:
    return Explanation(
        "no-super-init", f"A layer is assigned before nn.Module is ready{case.at}.",
        "super().__init__()  # the first line of __init__",
    )  # fmt: skip


@explains(r'Module \[(\w+)\] is missing the required "forward" function')
def no_forward(case: Case) -> Explanation:
    name = case.match[1]
    if name in ("ModuleList", "ModuleDict", "ParameterList", "ParameterDict"):
        return Explanation(
            "container-called", f"A {name} is called{case.at}: it only holds modules.",
            "for layer in self.layers: x = layer(x)  # or nn.Sequential", {},
        )  # fmt: skip
    return Explanation(
        "no-forward", f"{name} has no method forward: it is misspelt, or indented into another one.",
        "def forward(self, x): …  # on the level of __init__",
    )  # fmt: skip


@explains(r"AttributeError: '(\w+)' object has no attribute '(\w+)'")
def no_attribute(case: Case) -> Explanation:
    kind, name = case.match.groups()
    model = case.examination.parts.model
    owner = next((m for m in model.modules() if type(m).__name__ == kind), None) if model is not None else None
    if owner is not None:
        known = [n for n in (*owner._parameters, *owner._buffers, *owner._modules, *vars(owner)) if n[:1] != "_"]
        meant = did_you_mean(name, known) if known else ""
        return Explanation(
            "no-attribute", f"{kind} has no {name!r}{case.at}. {meant}".rstrip(), f"self.{name} = …  # in __init__",
            {"known": sorted(set(known) - {"training"})[:10]},
        )  # fmt: skip
    hints = {
        "NoneType": "a function that returns nothing was used as a value: add its return",
        "tuple": "out, state = layer(x)  # recurrent layers return two values",
        "dict": 'batch["x"]  # a dict is asked by key',
        "list": "torch.stack(values)  # or go through the list",
        "float": "a tensor is needed: leave out .item() and float()",
        "int": "a tensor is needed: leave out .item() and int()",
        "Tensor": "outputs.logits exists on an output object, not on a tensor",
        "DataParallel": f"model.module.{name}",
        "DistributedDataParallel": f"model.module.{name}",
    }
    return Explanation(
        "no-attribute", f"A {kind} has no {name!r}{case.at}.{case.variables()}",
        hints.get(kind, "look at what this variable holds: print(type(value))"), {"type": kind, "attribute": name},
    )  # fmt: skip


@explains(r"TypeError: (?:\w+\.)*(\w+)\(\) (?:takes|missing|got an unexpected|got multiple)")
def arguments(case: Case) -> Explanation:
    function = case.match[1]
    model = case.examination.parts.model
    takes = ""
    if function == "forward" and model is not None:
        module = case.scene.module or model
        names = list(inspect.signature(type(module).forward).parameters)[1:]
        takes = f" {type(module).__name__}.forward takes ({', '.join(names)})."
    batch = f" A batch is {kind_text(case.batch)}." if case.batch is not None else ""
    return Explanation(
        "arguments", f"{case.first_line}{case.at}.{takes}{batch}",
        "model(x)  # the inputs alone; a step of your own for anything else", {"function": function},
    )  # fmt: skip


@explains(r"cannot be converted to Scalar|only one element tensors can be converted")
def to_number(case: Case) -> Explanation:
    given = case.operand(0)
    shape = f" of shape {given.shape}" if given is not None else ""
    return Explanation(
        "not-one-number", f"A tensor{shape} is turned into one number{case.at}.",
        "loss.mean().item()  # or .tolist() for all of them", case.shapes,
    )  # fmt: skip


@explains(r"Boolean value of Tensor with more than one value")
def truth(case: Case) -> Explanation:
    return Explanation(
        "truth-of-tensor", f"A tensor with several values is asked whether it is true{case.at}; a loss class called "
        "with tensors, nn.MSELoss(out, y), ends here too.",
        "if (x > 0).all(): …  # any() or all(); nn.MSELoss()(out, y)", case.shapes,
    )  # fmt: skip


@explains(r"NameError: name '(\w+)' is not defined|UnboundLocalError: .*'(\w+)'")
def no_name(case: Case) -> Explanation:
    name = case.match[1] or case.match[2]
    return Explanation(
        "no-name", f"There is no variable {name!r}{case.at} when this line runs.",
        "define it before this line, also in the branch that was taken", {"name": name},
    )  # fmt: skip
