"""What the doctor knows, mistake by mistake, and what it can't see, with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """A mistake that has no rule of its own.

    Args:
        fault: the mistake, as a phrase.
        lesson: stem of the lesson that teaches it.
        reason: why it can't be detected without false alarms.
        instead: what shows it.
    """

    fault: str
    lesson: str
    reason: str
    instead: str


LIMITS = (
    Limit(
        "versions compared as text (`torch.__version__ > '2.9'`)", "00_start",
        "The comparison is over before anything trains, and its result looks like any other.",
        "`torch.torch_version.TorchVersion(torch.__version__) >= (2, 9)`",
    ),
    Limit(
        "a mean without `keepdim` that only fits because the batch is square", "01_tensors",
        "On a batch of another size it fails, just as models of one fixed graph do, which are right.",
        "Run the function on a batch whose sizes all differ.",
    ),
    Limit(
        "the result of `x.to(device)` thrown away", "01_tensors",
        "Where nothing else moves, nothing goes wrong; where something does, the step fails and is explained.",
        "`x = x.to(device)`: `Tensor.to` returns a copy, only modules move in place.",
    ),
    Limit(
        "the meta device as a stand-in for a GPU", "03_modules",
        "Some operations of a meta tensor with a CPU tensor raise no error, so a test passes that should not.",
        "Compare `x.device` with the weights' device in the test itself.",
    ),
    Limit(
        "`no_grad()` expected to hold in other threads", "02_autograd",
        "The doctor runs your functions in one thread; a server's threads don't exist in an examination.",
        "Enter `torch.inference_mode()` in the function that the thread runs.",
    ),
    Limit(
        "attributes reordered between two versions of a model, so that the optimizer's moments belong to others",
        "05_training",
        "Equal shapes leave no trace in the state: it is kept by place and not by name.",
        "Store the list of parameter names beside the optimizer's state, and compare it before loading.",
    ),
    Limit(
        "a resumed run that differs from the one that went on", "05_training",
        "What your script saves and loads happens outside of what is examined. Weights that were loaded while the "
        "optimizer's state is empty are a note (`checkpoint.optimizer-starts-anew`), since fine-tuning starts so.",
        "Train 2 k steps; train k, save, load, train k: the weights must be equal bit for bit.",
    ),
    Limit(
        "a checkpoint that can't be loaded (`weights_only`)", "05_training",
        "A file that your script writes is not looked at. If loading fails inside of your functions, the failure is "
        "explained.",
        "Call `torch.load(path, weights_only=True)` right after saving, once, in a test.",
    ),
    Limit(
        "counters and caches that workers fill and the main process never sees", "04_data",
        "Data sets keep caches on purpose, and a cache that stays empty changes no value.",
        "Compare `vars(dataset)` after an epoch without and with workers.",
    ),
    Limit(
        "stray files in a folder of images", "04_data",
        "Only the data set knows what belongs to it. A file that can't be read makes the loader fail, which is "
        "explained.",
        "Compare `dataset.classes` with the classes that you expect.",
    ),
    Limit(
        "an order of the data that depends on how many numbers the model's initialization drew", "04_data",
        "Every unseeded loader draws from the process-wide generator; that is right unless two runs are compared.",
        "`DataLoader(..., generator=torch.Generator().manual_seed(0))`",
    ),
    Limit(
        "results that change with the number of workers", "04_data",
        "Random numbers per worker are how augmentation works; only you know whether runs must agree.",
        "Draw from a generator seeded by epoch and index.",
    ),
    Limit(
        "no `if __name__ == '__main__'` where workers are started by spawn", "04_data",
        "The doctor imports your file under another name, and starts no workers by spawn.",
        "Run the script once with `num_workers=1` and the start method of the target machine.",
    ),
    Limit(
        "a run that can't be repeated because it was not seeded", "05_training",
        "An examination puts the generators back, so it always finds them as they are.",
        "Train two steps twice after `torch.manual_seed(0)`; compare the weights.",
    ),
    Limit(
        "BatchNorm with accumulation or tiny batches", "05_training",
        "The statistics of micro-batches differ from those of the whole batch by construction; how much it harms "
        "depends on the task.",
        "GroupNorm, or a batch that fits.",
    ),
    Limit(
        "a check for `isnan` that lets infinity pass", "05_training",
        "A check that never fires in a healthy run looks the same in both forms.",
        "`torch.isfinite`",
    ),
    Limit(
        "a learning rate that YAML reads as text", "05_training",
        "It fails where the optimizer is built, before the examination, with a message of its own.",
        "`lr = float(config['lr'])`, or `1.0e-4` in the file.",
    ),
    Limit(
        "memory that mixed precision does not save", "06_memory",
        "Weights, gradients and Adam's moments stay in float32, which is right; what is saved depends on activations.",
        "Measure the peak with and without autocast.",
    ),
    Limit(
        "`empty_cache()` as a cure, fragmentation, batches of many shapes", "06_memory",
        "They show only on a GPU under pressure; a CPU's allocator has no such counters.",
        "Compare `memory_allocated` with `memory_reserved`; pad to a few sizes.",
    ),
    Limit(
        "ranks that see the same data, other seeds, or other numbers of batches", "07_distributed",
        "One process is examined; what another rank does can't be seen from here. Samplers and streams that are "
        "wrong by themselves have rules.",
        "Gather the indices of one epoch from all ranks: together all, in common none.",
    ),
    Limit(
        "BatchNorm statistics, random numbers or gradients that differ between ranks", "07_distributed",
        "It takes two processes to differ.",
        "Gather a checksum of parameters and buffers after a few steps; SyncBatchNorm.",
    ),
    Limit(
        "accumulation that synchronizes in every micro-batch", "07_distributed",
        "The result is the same, only slower, and one process waits for nobody.",
        "`with model.no_sync():` for all micro-batches but the last.",
    ),
    Limit(
        "a backend that the machine lacks (nccl without GPUs)", "07_distributed",
        "It fails when the group is made, before the examination, with a clear message.",
        "`backend = 'nccl' if torch.cuda.is_available() else 'gloo'`",
    ),
    Limit(
        "an ONNX file moved without its `.onnx.data`", "08_export",
        "The file is whole where it was written.",
        "Load a copy from an empty folder.",
    ),
    Limit(
        "other preprocessing in the service than in training", "08_export",
        "The service is another program. Training and validation that differ have a rule.",
        "One raw input with its known output, through the whole path.",
    ),
    Limit(
        "recompilation and graph breaks", "08_export",
        "Compiled and plain code give the same values; only time tells, and compiling takes longer than an "
        "examination may.",
        "`torch._dynamo.explain(model)(x).graph_break_count`, `TORCH_LOGS=recompiles`",
    ),
    Limit(
        "`fullgraph=True` on a function that was compiled before", "08_export",
        "The cached graphs are reused without a word.",
        "`torch.compiler.reset()` before the test.",
    ),
    Limit(
        "libraries that don't load together (OpenMP, DLLs)", "00_start",
        "Nothing runs, the doctor neither.",
        "A clean environment with pinned versions.",
    ),
)  # fmt: skip

# Which rules find a known mistake, by theme. A failure is told by its message, so it has no rule of its own.
FOUND: dict[str, dict[str, tuple[str, ...]]] = {
    "Tensors": {
        "float64 from NumPy": ("failure.step", "loss.float64"),
        "whole numbers into a linear layer, floats into an embedding or as classes": ("failure.step",),
        "shared memory that is edited (`from_numpy`, views)": ("data.batch-edited", "data.reading-edits"),
        "several devices, a GPU that is not used": (
            "device.several", "device.batch-elsewhere", "device.accelerator-unused", "model.constant-not-a-buffer",
        ),
        "`view` after `transpose`": ("failure.step", "model.mixes-batch"),
        "shapes that broadcast": ("loss.broadcast", "evaluation.metric-broadcast"),
        "`squeeze()` without an axis": ("model.squeeze-drops-batch",),
        "classes on the wrong axis": ("loss.wrong-class-axis", "failure.step"),
        "`torch.empty` never filled": ("model.uninitialized",),
    },
    "Autograd": {
        "in-place on a leaf or on a saved value": ("failure.step", "model.inplace-changes-result"),
        "`.data`": ("autograd.saved-value-changed", "optimizer.no-gradient"),
        "`.item()`, `.numpy()`, `detach()` on the way": ("autograd.loss-not-connected", "optimizer.no-gradient"),
        "operations without a gradient, dead units": ("optimizer.gradient-always-zero",),
        "square root or logarithm at 0": ("numerics.nan-gradient", "numerics.log-of-softmax"),
        "`.grad` of a tensor that is no leaf": ("failure.warning",),
        "a second backward pass": ("autograd.graph-used-twice", "loop.stale-state"),
        "wrong custom Functions": ("autograd.function-wrong-gradient", "autograd.function-ignores-gradient"),
        "`sample()` for `rsample()`": ("autograd.sample-not-rsample",),
        "an attack that fills the weights' gradients": ("loop.adversarial-gradients-kept",),
    },
    "Modules and checkpoints": {
        "layers and weights that are not registered": ("model.unregistered-parameters", "model.constant-not-a-buffer"),
        "a layer built in forward": ("model.layer-built-in-forward",),
        "parameters that the optimizer lacks": ("optimizer.parameters-missing",),
        "dropout or noise in evaluation": ("model.random-in-eval",),
        "examples that influence each other": ("model.mixes-batch",),
        "frozen, and still moving": ("model.frozen-statistics-move", "optimizer.frozen-parameter-moves"),
        "hooks": ("model.hook-left", "model.forward-called-directly"),
        "`strict=False`, prefixed names": ("checkpoint.nothing-loaded", "checkpoint.wrapped-names"),
        "the best weights are the last": ("memory.best-state-is-live",),
        "the optimizer's state is not saved": ("checkpoint.optimizer-starts-anew",),
    },
    "Data": {
        "random numbers in workers": ("data.worker-copies", "data.epoch-copies"),
        "streams read by every worker": ("data.stream-not-split", "data.stream-ignores-rank"),
        "examples of different sizes, images that are no tensors": ("failure.loader",),
        "images from 0 to 255": ("data.images-not-scaled",),
        "too many workers": ("data.too-many-workers",),
        "the same order in every epoch": ("distributed.no-set-epoch", "loop.same-order-each-epoch"),
        "a last batch of one": ("data.last-batch-of-one",),
        "a mean of means": ("evaluation.mean-of-means",),
    },
    "Training loop": {
        "`zero_grad` missing or misplaced": ("loop.no-zero-grad", "loop.gradients-erased"),
        "accumulation": ("loop.accumulation-discarded", "loop.accumulation-not-divided", "loop.accumulation-tail"),
        "clipping": ("loop.clip-misplaced", "amp.clip-before-unscale"),
        "NaN": ("data.nonfinite", "numerics.nan-gradient", "numerics.loss-not-finite"),
        "modes": ("evaluation.train-mode", "evaluation.leaves-eval-mode", "loop.eval-mode-while-training"),
        "schedules": (
            "scheduler.wrong-pace", "scheduler.before-optimizer", "scheduler.never-steps",
            "scheduler.plateau-direction", "optimizer.learning-rate-zero",
        ),
        "gradients of another loss": ("loop.foreign-gradients",),
        "labels": ("loss.labels-out-of-range", "failure.step"),
    },
    "Memory and AMP": {
        "graphs that are kept": ("memory.graph-kept", "evaluation.keeps-graphs"),
        "slices that keep a large storage": ("memory.slice-pins-storage",),
        "scaling": ("amp.every-step-skipped", "amp.scaler-bypassed", "amp.no-scaler", "amp.no-scaler-update"),
        "one autocast for all steps": ("amp.autocast-around-steps",),
        "weights in float16 or bfloat16": ("optimizer.half-weights", "optimizer.update-vanishes"),
        "inputs that require gradients": ("data.input-requires-grad",),
        "checkpointing without gradients": ("optimizer.no-gradient",),
        "`torch.cuda.amp`": ("failure.warning",),
    },
    "Distributed, export": {
        "padding in an evaluation": ("distributed.padded-evaluation",),
        "parameters that are not used": ("optimizer.no-gradient",),
        "a branch frozen by tracing": ("export.result-differs",),
        "export in training mode": ("export.train-mode",),
        "a fixed batch": ("export.static-batch", "export.failed"),
    },
}  # fmt: skip
