"""Checks of lesson 03: hooks, fine-tuning, loading, and the clinic."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.exercises.compare import describe, is_close, is_equal, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.modules_parts import is_module_class
from course_utils.exercises.verdicts import Check
from course_utils.hooks import hook_count
from course_utils.transfer import moved, snapshot


class Net(nn.Module):
    """A backbone with BatchNorm and Dropout, and a head with both: what the checks work on."""

    def __init__(self, d: int = 6, hidden: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(d, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.3), nn.Linear(hidden, hidden)
        )
        self.head = nn.Sequential(nn.BatchNorm1d(hidden), nn.Dropout(0.5), nn.Linear(hidden, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


class Shelved(Net):
    """The same with a layer whose name has ``module.`` in its middle."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes=classes)
        self.tail = nn.ModuleDict({"module": nn.Linear(2, 2)})


def check_recorder(recording: Any, inputs: Inputs) -> Iterator[Check]:
    """modules.recorder: a context manager that records outputs and takes its hooks off, whatever happens."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True)), nn.Linear(5, 2))
    layer = model[0][0]
    x = inputs.randn(3, 4)
    with torch.no_grad():
        first = layer(x).clone()
    with recording(model, "0.0") as seen:
        yield is_true(
            "gives a list inside the block",
            type(seen) is list,
            detail=f"got {describe(seen)}",
            hint="yield the list that the hook appends to.",
        )
        result = model(x)
        model(x + 1)
    yield is_equal(
        "records every forward pass",
        len(seen),
        2,
        hint="register_forward_hook on the layer with this name: model.get_submodule(name).",
    )
    yield is_close(
        "records the layer's output as it was",
        seen[0],
        first,
        hint="Store a copy.",
        mistakes=[
            (
                first.relu(),
                "The next layer works in place and has rewritten what you stored. clone() it, and return nothing from "
                "the hook.",
            )
        ],
    )
    yield is_true(
        "keeps no graph alive",
        not seen[0].requires_grad,
        detail="the recorded tensor has a grad_fn",
        hint="detach(): else every recorded tensor keeps its whole graph in memory.",
    )
    yield is_true(
        "leaves the model's output alone",
        torch.autograd.grad(result.sum(), layer.weight, allow_unused=True)[0] is not None,
        detail="no gradient reaches the layer any more",
        hint="A forward hook that returns a value replaces the output.",
    )
    yield is_equal("takes its hook off at the end", hook_count(model), 0, hint="handle.remove()")
    with suppress(ZeroDivisionError), recording(model, "1"):
        raise ZeroDivisionError
    yield is_equal("also when the block fails", hook_count(model), 0, hint="try: yield … finally: handle.remove()")
    count = len(seen)
    model(x)
    yield is_equal("and records nothing afterwards", len(seen), count, hint="The hook is still there.")
    layer.register_forward_hook(lambda *_: None)  # somebody else's
    with recording(model, "0.0"):
        model(x)
    yield is_equal(
        "leaves the hooks of others on the layer",
        hook_count(model),
        1,
        hint="handle.remove() takes off your own hook and no other.",
    )


def check_prepare(prepare: Callable, inputs: Inputs) -> Iterator[Check]:
    """modules.prepare: freeze a backbone for an epoch so that nothing in it moves by a bit."""
    torch.manual_seed(inputs.seed)
    model = Net()
    x, y = inputs.randn(12, 6), inputs.randint(0, 3, 12)
    before = snapshot(model)
    model.eval()  # a validation has just ended
    learning = list(prepare(model, model.backbone))
    wanted = {id(p) for p in model.head.parameters()}
    given = {id(p) for p in learning}
    yield is_true(
        "returns the parameters that shall learn",
        given == wanted,
        detail=f"got {len(given)} parameters, {len(given & wanted)} of them the head's {len(wanted)}",
        hint="Those that require gradients, after the backbone's no longer do.",
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)  # given everything, on purpose
    for _ in range(3):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    gone = [name for name in moved(model, before) if name.startswith("backbone")]
    statistics = [name for name in gone if "running" in name or "num_batches" in name]
    yield is_equal(
        "after three steps, no parameter of the backbone has moved by a bit",
        sorted(set(gone) - set(statistics)),
        [],
        hint="requires_grad_(False) on the backbone: without a gradient an optimizer leaves a parameter alone, "
        "even one that was given the whole model.",
    )
    yield is_equal(
        "nor have its BatchNorm statistics",
        statistics,
        [],
        hint="Statistics are no parameters: requires_grad doesn't touch them. backbone.eval(), after model.train().",
    )
    still = [name for name in before if name.startswith("head") and name not in moved(model, before)]
    yield is_equal("everything in the head has moved", still, [], hint="The head must be in train mode: model.train().")
    yield is_true(
        "Dropout in the head is on, in the backbone off",
        model.head[1].training and not model.backbone[3].training,
        detail=f"head {model.head[1].training}, backbone {model.backbone[3].training}",
        hint="First model.train(), then backbone.eval(): train() switches everything below it.",
    )


def check_load(load_partial: Callable, inputs: Inputs) -> Iterator[Check]:
    """modules.load: load what fits, and report every key."""
    source, target = Shelved(classes=4), Shelved(classes=3)
    with torch.no_grad():
        for value in source.state_dict().values():
            value.copy_(inputs.randn(*value.shape) if value.is_floating_point() else torch.tensor(7))
    state = dict(source.state_dict())
    del state["backbone.1.running_mean"]
    state["backbone.0.weight"] = inputs.randn(6, 8)  # as many numbers as the model's (8, 6)
    state["old.weight"] = torch.zeros(2)
    clean = {key: value.clone() for key, value in state.items()}
    wrapped = {f"module.{key}": value for key, value in state.items()}
    before, objects = snapshot(target), [id(p) for p in target.parameters()]
    for what, given in (("a plain state", state), ("a state whose keys begin with 'module.'", wrapped)):
        target.load_state_dict(before)
        mine = dict(given)
        answer = load_partial(target, mine)
        good = (
            type(answer) in (tuple, list)
            and len(answer) == 4
            and all(isinstance(part, (list, tuple, set)) for part in answer)
        )
        yield is_true(
            f"{what}: returns four lists of keys",
            good,
            detail=f"got {describe(answer)}",
            hint="return loaded, wrong_shape, missing, unexpected",
        )
        loaded, wrong_shape, missing, unexpected = (sorted(part) for part in answer)
        if what != "a plain state" and any(str(key).startswith("module.") for key in [*loaded, *unexpected]):
            yield is_true(
                f"{what}: takes the prefix off",
                False,
                detail=f"unexpected: {unexpected[:2]} …",
                hint='key.removeprefix("module."): DistributedDataParallel puts it before every key.',
            )
        bad = ["backbone.0.weight", "head.2.bias", "head.2.weight"]
        yield is_equal(
            f"{what}: names what has another shape",
            wrong_shape,
            bad,
            hint="Same name, other shape.",
            mistakes=[(bad[1:], "As many numbers, and yet another shape: (6, 8) is not (8, 6). Compare the shapes.")],
        )
        yield is_equal(
            f"{what}: names what the state lacks",
            missing,
            ["backbone.1.running_mean"],
            hint="Keys of model.state_dict() that are not in the state.",
            mistakes=[
                (sorted(["backbone.1.running_mean", *bad]), "A key of another shape is not missing."),
                (
                    ["backbone.1.running_mean", "tail.module.bias", "tail.module.weight"],
                    "module. is taken off at the beginning of a name only: key.removeprefix.",
                ),
            ],
        )
        yield is_equal(
            f"{what}: names what the model doesn't know",
            unexpected,
            ["old.weight"],
            hint="Keys of the state that the model lacks.",
        )
        wanted = sorted(set(before) - {*bad, "backbone.1.running_mean"})
        yield is_equal(f"{what}: names what was loaded", loaded, wanted, hint="All others, also buffers.")
        after = target.state_dict()
        lost = [key for key in wanted if not torch.equal(after[key], clean[key])]
        yield is_equal(f"{what}: and has loaded it", lost, [], hint="load_state_dict({…what fits…}, strict=False)")
        touched = [key for key in (*bad, "backbone.1.running_mean") if not torch.equal(after[key], before[key])]
        yield is_equal(f"{what}: the rest keeps its values", touched, [], hint="Load only what fits.")
        places = {value.data_ptr() for value in state.values()}
        shared = [key for key in wanted if after[key].data_ptr() in places]
        yield is_equal(
            f"{what}: has copied the values",
            shared,
            [],
            hint="Model and state share memory: training the model would change the state. Use copy_.",
        )
        yield is_true(
            f"{what}: is unchanged",
            list(mine) == list(given) and all(torch.equal(state[key], value) for key, value in clean.items()),
            detail="other keys or other values than before",
            hint="Build a new dictionary, and write nothing into the state's tensors.",
        )
    yield is_true(
        "the parameters are still the same objects",
        [id(p) for p in target.parameters()] == objects,
        hint="An optimizer holds the old ones. Copy values into them instead of assigning new parameters.",
    )


def check_clinic_experts(experts: Any, inputs: Inputs) -> Iterator[Check]:
    """modules.clinic-experts: layers in a dict are not registered."""
    yield is_module_class("is a class derived from nn.Module", experts)
    model = experts(5, ["left", "right"])
    x = inputs.randn(3, 5)
    names = [name for name, _ in model.named_parameters()]
    yield is_equal(
        "the optimizer gets two weights and two biases",
        len(names),
        4,
        hint="A dict hides layers from the module. nn.ModuleDict is a dict that doesn't.",
        mistakes=[(2, "Both names lead to one and the same layer. Make one for each name.")],
    )
    before = snapshot(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(x, "left").square().sum() + model(x, "right").square().sum()).backward()
    optimizer.step()
    still = [name for name in before if name not in moved(model, before)]
    yield is_equal("one step moves all of them", still, [], hint="Both experts must be reached by the name given.")
    other = experts(5, ["left", "right"])
    other.load_state_dict(model.state_dict())
    yield is_close("and they are saved and loaded", other(x, "right"), model(x, "right").detach(), hint="nn.ModuleDict")
    differs = not torch.allclose(model(x, "left"), model(x, "right"))
    yield is_true(
        "the experts are two different layers", differs, detail="both give the same", hint="One layer for each name."
    )


def check_clinic_predict(predict: Callable, inputs: Inputs) -> Iterator[Check]:
    """modules.clinic-predict: eval mode for a prediction, and every submodule's own mode afterwards."""
    torch.manual_seed(inputs.seed)
    model = Net()
    x = inputs.randn(8, 6)
    model.train()
    model.backbone[1].eval()  # frozen on purpose
    modes = [part.training for part in model.modules()]
    before = snapshot(model)
    twin = copy.deepcopy(model).eval()
    with torch.no_grad():
        wanted = twin(x).argmax(1)
    answer = predict(model, x)
    yield is_true(
        "returns the classes, as in eval mode",
        type(answer) is Tensor and answer.dtype == torch.int64 and torch.equal(answer, wanted),
        detail=f"got {describe(answer)}",
        hint="Dropout must be off and BatchNorm must use its running values: model.eval().",
    )
    yield is_equal(
        "no statistics have moved", moved(model, before), [], hint="In train mode every forward pass moves them."
    )
    after = [part.training for part in model.modules()]
    all_train, all_eval = not any(not mode for mode in after), not any(after)
    hint = "Remember the mode of each submodule and put it back."
    if all_eval:
        hint = "The model stays in eval mode: from now on Dropout is off in training, and no error says so."
    elif all_train:
        hint = "model.train() also wakes the BatchNorm that somebody had frozen. Put back each submodule's own mode."
    yield is_equal("every submodule has its own mode back", after, modes, hint=hint)


def check_clinic_features(features: Callable, inputs: Inputs) -> Iterator[Check]:
    """modules.clinic-features: a hook that is never removed."""
    model = Net().eval()
    x = inputs.randn(4, 6)
    with torch.no_grad():
        wanted = model.backbone(x)
    for _ in range(3):
        answer = features(model, x)
    yield is_close("returns what the backbone gives", answer, wanted, hint="The output of model.backbone.")
    yield is_equal(
        "three calls leave no hook behind",
        hook_count(model),
        0,
        hint="Each call registers another hook, and none is removed: every forward pass gets slower. handle.remove().",
    )
    with suppress(RuntimeError):
        features(model, inputs.randn(4, 5))  # the wrong width
    yield is_equal("nor does a call that fails", hook_count(model), 0, hint="try: … finally: handle.remove()")
    yield is_true("the result is in no graph", not answer.requires_grad, hint="detach() what you keep.")


def check_clinic_dropout(noisy: Any, inputs: Inputs) -> Iterator[Check]:
    """modules.clinic-dropout: functional dropout doesn't know the module's mode."""
    yield is_module_class("is a class derived from nn.Module", noisy)
    model = noisy(6, 3)
    x = inputs.randn(5, 6)
    model.eval()
    first, second = model(x), model(x)
    yield is_close(
        "eval mode: the same input gives the same output",
        first,
        second.detach(),
        hint="F.dropout has training=True by default and knows nothing of model.eval(). Pass training=self.training.",
    )
    model.train()
    torch.manual_seed(inputs.seed)
    hidden = torch.stack([model(x) for _ in range(50)])
    yield is_true(
        "train mode: Dropout is on",
        bool(hidden.std(0).max() > 1e-4),
        detail="50 passes are all equal",
        hint="Off in both modes is no repair.",
    )
    yield is_true(
        "the numbers that come in are dropped, not the scores",
        not (hidden == 0).any(),
        detail="some scores are exactly 0",
        hint="The dropout stands before the linear layer.",
    )
    one = F.one_hot(torch.tensor(2), 6).float().expand(400, 6)
    dropped = torch.isclose(model(one), model(torch.zeros(1, 6))).all(1).double().mean().item()
    yield is_true(
        "an input is dropped about every other time",
        0.35 < dropped < 0.65,
        detail=f"dropped in {100 * dropped:.0f} % of 400 passes",
        hint="Dropout of 0.5, once, on the inputs.",
    )
    model.eval()
    near = (hidden.mean(0) - model(x)).abs().mean() < 0.6 * hidden.std(0).mean() + 0.05
    yield is_true(
        "the outputs of both modes agree on average",
        bool(near),
        detail="they differ",
        hint="Dropout scales what it keeps by 1 / (1 − p), so that the mean stays. F.dropout and nn.Dropout do that.",
    )


def check_clinic_best(best_state: Callable, inputs: Inputs) -> Iterator[Check]:
    """modules.clinic-best: a state_dict is no snapshot."""
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    losses: list[float] = []
    states: list[Mapping[str, Tensor]] = []
    goal = inputs.choice([1, 2, 3])

    def train_epoch(net: nn.Module) -> float:
        with torch.no_grad():
            net[0].weight.add_(inputs.randn(2, 4))
            net[0].bias.add_(1.0)
            net[1].running_mean.add_(1.0)
        states.append({name: value.clone() for name, value in net.state_dict().items()})
        losses.append(1.0 if len(losses) == goal else 2.0 + len(losses))
        return losses[-1]

    answer = best_state(model, train_epoch, 5)
    yield is_equal("trains for all epochs", len(losses), 5, hint="Call train_epoch(model) once for each epoch.")
    named = isinstance(answer, Mapping)
    yield is_true("returns a state", named, detail=f"got {describe(answer)}", hint="The state_dict of the best epoch.")
    yield is_equal(
        "with all that a state_dict has",
        sorted(answer),
        sorted(states[0]),
        hint="A state_dict holds parameters and buffers, by their names.",
    )
    is_last = _same_state(answer, states[-1])
    yield is_true(
        "the state of the best epoch, not of the last",
        _same_state(answer, states[goal]),
        detail="it holds the weights of the last epoch" if is_last else "it holds the weights of another epoch",
        hint="state_dict() holds the model's own tensors, which training goes on changing. Copy them: "
        "copy.deepcopy, or clone each.",
    )
    yield is_true(
        "the model itself goes on",
        _same_state(model.state_dict(), states[-1]),
        detail="the model has changed after its last epoch",
        hint="Don't load it back here.",
    )


def _same_state(state: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Both states have equal tensors under every name of ``other``."""
    return all(torch.equal(state[name], value) for name, value in other.items())
