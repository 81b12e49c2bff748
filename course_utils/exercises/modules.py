"""Exercises and clinic items of lesson 03: titles, hints, and where each check is."""

from __future__ import annotations

from course_utils.exercises.modules_models import (
    check_clinic_best,
    check_clinic_dropout,
    check_clinic_experts,
    check_clinic_features,
    check_clinic_predict,
    check_load,
    check_prepare,
    check_recorder,
)
from course_utils.exercises.modules_parts import (
    check_attention,
    check_batchnorm,
    check_conv_parameters,
    check_residual,
    check_stack,
    check_standardize,
)
from course_utils.exercises.registry import CLINIC, Exercise

BEFORE_INIT = (
    "before Module.__init__() call",
    "super().__init__() comes first: it makes the places where a module keeps what is assigned to it.",
)

EXERCISES = [
    Exercise(
        id="modules.standardize",
        title="Numbers that are saved but not learned",
        check=check_standardize,
        hints=(
            "The mean and the standard deviation belong to the model, but no optimizer may change them.",
            "self.register_buffer(name, tensor) makes such a tensor. It is then an attribute of that name.",
            'super().__init__(); self.register_buffer("mean", mean), the same for std; in forward '
            "(x - self.mean) / self.std",
        ),
        errors=(BEFORE_INIT,),
    ),
    Exercise(
        id="modules.stack",
        title="Layers from a loop",
        check=check_stack,
        hints=(
            "A Python list is an attribute like any other: the module doesn't look inside.",
            "nn.ModuleList takes the layers as a list does. zip(sizes, sizes[1:]) gives the pairs.",
            "self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])); in forward, relu after "
            "each but the last",
        ),
        errors=(BEFORE_INIT, ("shapes cannot be multiplied", "Each layer's inputs are the outputs of the one before.")),
    ),
    Exercise(
        id="modules.batchnorm",
        title="BatchNorm, both of it",
        check=check_batchnorm,
        hints=(
            "Two different functions in one module. self.training says which one is wanted.",
            "In train mode normalise by the batch's own mean and variance (divided by N), and update the running ones, "
            "the variance divided by N − 1. x.var(0, correction=0) divides by N.",
            "with torch.no_grad(): self.mean.lerp_(x.mean(0), 0.1); self.var.lerp_(x.var(0), 0.1)",
        ),
        errors=(
            BEFORE_INIT,
            ("a leaf Variable that requires grad", "Running values are buffers, not parameters."),
            ("backward through the graph a second time", "Update the running values under torch.no_grad()."),
            ("does not require grad", "Only the running values are updated under torch.no_grad(), not the output."),
        ),
    ),
    Exercise(
        id="modules.conv-parameters",
        title="Counting without building",
        check=check_conv_parameters,
        hints=(
            "How many input numbers does one output number look at? That many weights has its channel.",
            "An output channel looks at c_in / groups channels, kernel · kernel numbers of each.",
            "c_out * (c_in // groups) * kernel**2 + (c_out if bias else 0)",
        ),
    ),
    Exercise(
        id="modules.attention",
        title="Attention",
        check=check_attention,
        hints=(
            "Every position asks every other one: T · T scores for each example.",
            "scores = q @ k.transpose(-2, -1) / E**0.5; a softmax over the last axis makes weights; weights @ v",
            "For is_causal: torch.ones(T, T).tril() tells which pairs may be seen; "
            'scores.masked_fill(mask == 0, float("-inf")) before the softmax',
        ),
        errors=(
            ("first two dimensions of batch2", "q kᵀ is (N, T, T). k.transpose(-2, -1) swaps the last two axes."),
            ("at non-singleton dimension", ".T turns all three axes round. k.transpose(-2, -1) swaps the last two."),
        ),
    ),
    Exercise(
        id="modules.residual",
        title="A block that begins as nothing",
        check=check_residual,
        hints=(
            "If the branch gives 0, the block returns its input. Which single layer decides what the branch gives?",
            "The last one: with weight 0 and bias 0 it gives 0 whatever comes in, and its own gradient is not 0.",
            "nn.init.zeros_(self.branch[-1].weight); nn.init.zeros_(self.branch[-1].bias); forward: x + self.branch(x)",
        ),
        errors=(
            BEFORE_INIT,
            ("does not require grad", "No parameter takes part in the output. forward returns x + branch(x)."),
            ("modified by an inplace operation", "x + …, not x += …: that writes into the input of the first layer."),
        ),
    ),
    Exercise(
        id="modules.recorder",
        title="A recorder that cleans up",
        check=check_recorder,
        hints=(
            "register_forward_hook returns a handle. Who calls handle.remove() if the block fails?",
            "model.get_submodule(name) is the layer. The hook gets (layer, inputs, output). contextmanager "
            "turns a function with one yield into a context manager.",
            "handle = layer.register_forward_hook(lambda m, i, o: seen.append(o.detach().clone())); "
            "try: yield seen; finally: handle.remove()",
        ),
        errors=(
            ("does not support the context manager", "@contextmanager stands above the function."),
            ("takes 2 positional arguments but 3", "A forward hook gets three things: layer, inputs, output."),
            ("has no attribute '0.0'", "A name with dots leads through the tree: model.get_submodule(name)."),
        ),
    ),
    Exercise(
        id="modules.prepare",
        title="Frozen means frozen",
        check=check_prepare,
        hints=(
            "Two things move in a backbone: parameters, by the optimizer, and statistics, by a forward pass.",
            "requires_grad_(False) stops the first. backbone.eval() stops the second; but model.train() undoes it.",
            "backbone.requires_grad_(False); model.train(); backbone.eval(); "
            "return [p for p in model.parameters() if p.requires_grad]",
        ),
    ),
    Exercise(
        id="modules.load",
        title="Load what fits",
        check=check_load,
        hints=(
            "Compare the keys of both dictionaries as sets; then, for shared keys, the shapes.",
            'model.state_dict() gives the wanted keys and shapes. key.removeprefix("module.") takes the prefix off. '
            "load_state_dict(..., strict=False) accepts a part.",
            "fits = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}; "
            "model.load_state_dict(fits, strict=False)",
        ),
        errors=(("size mismatch", "strict=False forgives missing names, not other shapes. Leave those out yourself."),),
    ),
    Exercise(
        id="modules.clinic-experts",
        title="Experts who never learn",
        check=check_clinic_experts,
        kind=CLINIC,
        finding="model.unregistered-parameters",
        hints=(
            "How many parameters does the model report?",
            "The layers are in a plain dict, which the module doesn't look into.",
            "self.experts = nn.ModuleDict({name: nn.Linear(width, width) for name in names})",
        ),
        errors=(
            BEFORE_INIT,
            ("cannot be interpreted as an integer", "A ModuleList is asked by number, an nn.ModuleDict by name."),
        ),
    ),
    Exercise(
        id="modules.clinic-predict",
        title="Predictions that change the model",
        check=check_clinic_predict,
        kind=CLINIC,
        finding="evaluation.train-mode",
        hints=(
            "Which modules behave differently in train mode? What do they change on a forward pass?",
            "Put every submodule into eval mode, and afterwards give each its own mode back.",
            "modes = [(m, m.training) for m in model.modules()]; … finally: for m, mode in modes: m.training = mode",
        ),
    ),
    Exercise(
        id="modules.clinic-features",
        title="Slower with every call",
        check=check_clinic_features,
        kind=CLINIC,
        finding="model.hook-left",
        hints=(
            "How many hooks does the model have after 100 calls?",
            "register_forward_hook returns a handle; remove() takes the hook off. Also when the forward pass fails.",
            "handle = …; try: model(x) finally: handle.remove()",
        ),
    ),
    Exercise(
        id="modules.clinic-dropout",
        title="Never the same answer twice",
        check=check_clinic_dropout,
        kind=CLINIC,
        finding="model.random-in-eval",
        hints=(
            "model.eval() sets a flag in each module. Who reads it?",
            "F.dropout is a plain function, and its argument training is True unless you say otherwise.",
            "F.dropout(h, 0.5, training=self.training)",
        ),
    ),
    Exercise(
        id="modules.clinic-best",
        title="The best model is the last one",
        check=check_clinic_best,
        kind=CLINIC,
        finding="memory.best-state-is-live",
        hints=(
            "What is in a state_dict: numbers, or the tensors that training changes?",
            "Training works in place, and state_dict() returns the model's own tensors.",
            "best = copy.deepcopy(model.state_dict())",
        ),
    ),
]
