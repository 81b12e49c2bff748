"""Small experiments with the reader's set-up; each gives facts, and rules judge them."""

from course_utils.doctor.experiments.batches import Batches, look_at_batches
from course_utils.doctor.experiments.data import DataFacts, probe_data
from course_utils.doctor.experiments.evaluating import Evaluation, run_evaluation
from course_utils.doctor.experiments.exporting import ExportFacts, probe_export
from course_utils.doctor.experiments.forwards import Forwards, probe_forward
from course_utils.doctor.experiments.hidden import Hidden, hidden_tensors
from course_utils.doctor.experiments.layout import Scrambled, find_scrambled
from course_utils.doctor.experiments.objective import Objective, probe_objective
from course_utils.doctor.experiments.run import Root, Run
from course_utils.doctor.experiments.saving import SavedFacts, probe_saved
from course_utils.doctor.experiments.setup import prepare
from course_utils.doctor.experiments.steps import Steps, run_steps
from course_utils.doctor.experiments.targets import Bootstrap, find_bootstraps
from course_utils.doctor.experiments.tokens import Echo, find_echo
from course_utils.doctor.experiments.training import Training, run_training

# Findings that say the same again, less exactly: cause -> consequences that are left out.
CONSEQUENCES: dict[str, set[str]] = {
    "optimizer.parameters-missing": {"optimizer.strays"},
    "autograd.loss-not-connected": {"failure.step", "failure.train"},
    "autograd.graph-used-twice": {"failure.step", "failure.train"},
    "loop.stale-state": {"failure.step", "failure.train", "memory.graph-kept"},
    "data.last-batch-of-one": {"failure.step", "failure.train"},
    "model.constant-not-a-buffer": {"failure.step", "failure.train"},
    "model.layer-built-in-forward": {"model.mixes-batch", "model.random-in-eval", "optimizer.no-gradient"},
    "loss.one-class": {"optimizer.gradient-always-zero"},
    "distributed.no-set-epoch": {"loop.same-order-each-epoch"},
}

__all__ = [
    "CONSEQUENCES", "Batches", "Bootstrap", "DataFacts", "Echo", "Evaluation", "ExportFacts", "Forwards", "Hidden",
    "Objective", "Root", "Run", "SavedFacts", "Scrambled", "Steps", "Training", "find_bootstraps", "find_echo",
    "find_scrambled", "hidden_tensors", "look_at_batches", "prepare", "probe_data", "probe_export", "probe_forward",
    "probe_objective", "probe_saved", "run_evaluation", "run_steps", "run_training",
]  # fmt: skip
