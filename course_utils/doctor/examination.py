"""Examine the reader's training set-up: run it a little, observe, put everything back, and judge."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from course_utils.doctor import experiments
from course_utils.doctor.deadline import Budget
from course_utils.doctor.findings import NOTE, RULES, Finding, in_order
from course_utils.doctor.history import loading_of
from course_utils.doctor.parts import Parts
from course_utils.doctor.report import Report
from course_utils.doctor.running import Failure, Outcome, attempt
from course_utils.doctor.snapshot import Snapshot, modules_in
from course_utils.doctor.tracing import Trace
from course_utils.errors import UsageError

LIMIT_S = 60.0  # for an examination, however slow the reader's step is


def examine(
    model: nn.Module | Callable[[], dict[str, Any]] | None = None,
    loader: Any = None,
    loss_fn: Callable[..., Any] | None = None,
    optimizer: Any = None,
    step: Callable[..., Any] | None = None,
    train: Callable[..., Any] | None = None,
    evaluate: Callable[..., Any] | None = None,
    metric: Callable[..., Any] | None = None,
    *,
    limit_s: float = LIMIT_S,
    **parts: Any,
) -> Report:
    """Say what is wrong with a training set-up, with evidence and the repair.

    The set-up runs for a few steps on its own batches. Afterwards everything is as it was, bit for bit: weights,
    gradients, optimizer state, random generators, modes, and what your functions hold on to. A loader that is a
    plain iterator is the one exception: its batches can't be put back.

    Args:
        model: the network, several in one ``ModuleDict``; or a function that returns all parts in a dict.
        loader: yields batches, usually ``(inputs, labels)``.
        loss_fn: ``loss_fn(outputs, labels)``, a scalar.
        optimizer: of the model's parameters.
        step: your own ``step(model, batch, loss_fn, optimizer) -> loss``; without it the usual one is used.
        train: your own ``train(model, loader, loss_fn, optimizer)``.
        evaluate: your own ``evaluate(model)``.
        metric: your own ``metric(outputs, labels)``.
        limit_s: seconds after which the doctor stops, whatever it has seen.
        parts: further ones: ``val_loader``, ``train_set``, ``val_set``, ``scheduler``, ``scaler``, ``sampler``,
            ``ema``, ``optimizers``, ``example``, ``export``. Others are accepted; your functions may use them.

    Raises:
        UsageError: if a part is not what its name says.

    Example:
        >>> import torch
        >>> net, data = nn.Linear(3, 1), [(torch.randn(8, 3), torch.randn(8))]
        >>> sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> [finding.code for finding in examine(net, data, nn.MSELoss(), sgd).findings]
        ['loss.broadcast']
    """
    started = time.perf_counter()
    if model is not None and not isinstance(model, nn.Module) and callable(model):
        made = model()
        if not isinstance(made, dict):
            raise UsageError(
                "The function given to doctor.examine returned no dict.", got=made, fix="return dict(model=…)."
            )
        return examine(**{**made, **parts}, limit_s=limit_s)
    given = Parts(model, loader, loss_fn, optimizer, step, train, evaluate, metric, parts)
    examination = Examination(given, limit_s)
    try:
        findings = examination.findings()
    finally:
        examination.close()
    return Report(tuple(findings), time.perf_counter() - started, tuple(examination.remarks))


class Examination:
    """One look at one set-up. Experiments run when a rule first asks for their facts, and are rewound at once."""

    def __init__(self, parts: Parts, limit_s: float = LIMIT_S) -> None:
        self.parts = parts
        self.budget = Budget(limit_s)
        self.remarks: list[str] = []
        self.troubles: list[str] = []  # experiments that failed outside of the reader's code
        self.snapshot = Snapshot.of(vars(parts), *parts.others.values())
        if not self.snapshot.is_complete:
            self.remarks.append(
                "The set-up holds more than the doctor can keep a second time; its data were not copied."
            )
        self.loaded = [module for module in self.modules if loading_of(module) is not None]  # before anything runs
        experiments.prepare(self)

    def findings(self) -> list[Finding]:
        """Return the findings of all rules, the worst first. A rule that breaks is left out, with a remark."""
        from course_utils.doctor import rules

        rules.load()
        found: list[Finding] = []
        for rule in RULES.values():
            try:
                found += rule.findings(self)
            except Exception as error:  # a rule must not take the others with it
                text = str(error).splitlines()[0] if str(error) else ""
                self.remarks.append(f"The rule {rule.code} could not look: {type(error).__name__}: {text}")
            finally:
                self.rewind_if_needed()
        return in_order(_without_consequences(found))

    def close(self) -> None:
        """Put everything back."""
        self.snapshot.restore()

    # Running the reader's code.

    _is_dirty = False

    def run(self, function: Callable[[], Any], part: float = 0.3) -> Outcome:
        """Run some code of the reader within a part of the time that is left, and rewind everything afterwards."""
        self._is_dirty = True
        outcome = attempt(function, self.budget.share(part))
        if outcome.failure is not None and not outcome.failure.where:
            self.troubles.append(f"{outcome.failure.kind}: {outcome.failure.text}")
        self.rewind()
        return outcome

    def rewind(self) -> None:
        """Put everything back as it was, for the next experiment."""
        self.snapshot.restore(all_memory=False)
        experiments.prepare(self)
        self._is_dirty = False

    def rewind_if_needed(self) -> None:
        if self._is_dirty:
            self.rewind()

    # What is there.

    @cached_property
    def model(self) -> nn.Module | None:
        return self.parts.model

    @cached_property
    def names(self) -> dict[int, str]:
        """Names of parameters, buffers and hidden tensors by id."""
        names: dict[int, str] = {}
        for prefix, module in (("", self.parts.model), ("loss_fn.", self.parts.loss_fn)):
            if isinstance(module, nn.Module):
                for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                    names.setdefault(id(tensor), prefix + name)
        for hidden in self.hidden:
            names.setdefault(id(hidden.tensor), hidden.name)
        return names

    @cached_property
    def hidden(self) -> list[experiments.Hidden]:
        """Parameters and trainable tensors that modules hold without registering them."""
        return experiments.hidden_tensors(self.parts.model) if self.parts.model is not None else []

    @cached_property
    def modules(self) -> list[nn.Module]:
        """All modules that can be reached from the parts, also through closures."""
        return modules_in(self.snapshot)

    @cached_property
    def optimizers(self) -> list[Any]:
        """The optimizers that were given, and those that the reader's functions hold on to."""
        import torch

        reachable = self.snapshot.found(torch.optim.Optimizer)
        return list({id(item): item for item in [*self.parts.optimizers, *reachable]}.values())

    @cached_property
    def held(self) -> set[int]:
        """Ids of the parameters that some optimizer holds."""
        return {id(p) for item in self.optimizers for group in item.param_groups for p in group["params"]}

    def name_of(self, tensor: Tensor) -> str:
        return self.names.get(id(tensor), f"a tensor of shape {tuple(tensor.shape)}")

    # Experiments, each made once.

    @cached_property
    def batches(self) -> experiments.Batches:
        return experiments.look_at_batches(self)

    @cached_property
    def steps(self) -> experiments.Steps:
        return experiments.run_steps(self)

    @cached_property
    def training(self) -> experiments.Training | None:
        return experiments.run_training(self)

    @cached_property
    def evaluation(self) -> experiments.Evaluation | None:
        return experiments.run_evaluation(self)

    @cached_property
    def forwards(self) -> experiments.Forwards | None:
        return experiments.probe_forward(self)

    @cached_property
    def objective(self) -> experiments.Objective:
        return experiments.probe_objective(self)

    @cached_property
    def bootstraps(self) -> list[experiments.Bootstrap]:
        return experiments.find_bootstraps(self)

    @cached_property
    def echo(self) -> experiments.Echo | None:
        return experiments.find_echo(self)

    @cached_property
    def scrambled(self) -> experiments.Scrambled | None:
        return experiments.find_scrambled(self)

    @cached_property
    def data(self) -> experiments.DataFacts:
        return experiments.probe_data(self)

    @cached_property
    def saved(self) -> experiments.SavedFacts | None:
        return experiments.probe_saved(self)

    @cached_property
    def exported(self) -> experiments.ExportFacts | None:
        return experiments.probe_export(self)

    @cached_property
    def runs(self) -> list[experiments.Run]:
        """What ran of the reader's training: their loop, their steps; the usual step where there is neither."""
        found: list[experiments.Run] = []
        if self.training is not None and (self.training.did_something or self.training.failure is not None):
            found.append(self.training)
        if not (self.steps.is_guess and found) and (self.steps.did_something or self.steps.failure is not None):
            found.append(self.steps)
        return found

    @property
    def run_facts(self) -> experiments.Run | None:
        """The first of ``runs``."""
        return self.runs[0] if self.runs else None

    @property
    def traces(self) -> list[Trace]:
        return [run.trace for run in self.runs]

    @property
    def failure(self) -> Failure | None:
        """The first exception of the reader's training."""
        return next((run.failure for run in self.runs if run.failure is not None), None)

    @property
    def trained(self) -> set[int]:
        """Ids of the tensors that got a gradient in some run."""
        return set().union(*(run.trace.trained for run in self.runs))

    @property
    def weights_moved(self) -> set[int]:
        """Ids of the parameters that some run changed."""
        return set().union(*(run.weights_moved for run in self.runs))

    @property
    def root(self) -> experiments.Root | None:
        """A call of the model as the reader makes it."""
        return next((root for run in [*self.runs, self.steps] for root in run.roots), None)


def _without_consequences(findings: list[Finding]) -> list[Finding]:
    """Leave out findings that only repeat what a more exact one says."""
    codes = {finding.code for finding in findings if finding.severity != NOTE}
    shadows = {
        code for code in codes for cause, consequences in experiments.CONSEQUENCES.items() if cause in codes
        if code in consequences
    }  # fmt: skip
    return [finding for finding in findings if finding.code not in shadows or finding.severity == NOTE]
