"""Exercises and clinic items of lesson 08: titles, hints, and where each check is."""

from __future__ import annotations

from course_utils.exercises.export_clinic import (
    check_clinic_answers,
    check_clinic_blocking,
    check_clinic_fixed_batch,
    check_clinic_preprocess,
    check_clinic_thread,
    check_clinic_train_mode,
)
from course_utils.exercises.export_models import (
    check_branch,
    check_int8,
    check_int8_linear,
    check_parity,
    check_program,
    check_self_contained,
    check_unready,
)
from course_utils.exercises.export_service import (
    check_best_batch,
    check_gather,
    check_percentiles,
    check_read_request,
)
from course_utils.exercises.registry import CLINIC, Exercise

MSG_BATCH_OF_ONE = "The exporter takes a batch of 1 for a constant: give it two images, torch.cat([example, example])."
MSG_BATCH_AS_NUMBER = "Something in forward needs the batch as a number: a loop over the images, or a size written out."

EXERCISES = [
    Exercise(
        id="export.self-contained",
        title="Preprocessing on board",
        check=check_self_contained,
        hints=(
            "What does the notebook do with the pixels before the model sees them? The module does the same.",
            "Keep model, mean and std as attributes; in forward: .float(), divide by 255, subtract, divide.",
            "return self.model((pixels.float() / 255 - self.mean) / self.std)",
        ),
        errors=(
            ("before Module.__init__() call", "super().__init__() comes first."),
            ("missing 1 required positional argument: 'std'", "__init__(self, model, mean, std)"),
        ),
    ),
    Exercise(
        id="export.unready",
        title="Who is still training?",
        check=check_unready,
        hints=(
            "Each module has a switch of its own. Where do you find all modules with their names?",
            "model.named_modules() goes through every level, the root included.",
            "[name for name, module in model.named_modules() if module.training]",
        ),
    ),
    Exercise(
        id="export.program",
        title="One to most",
        check=check_program,
        hints=(
            "Three things: the mode, an example that is not a single image, a batch that may vary.",
            "evaluating(model), torch.cat([example, example]), torch.export.Dim('batch', min=1, max=most).",
            "with evaluating(model): return torch.export.export(model, (two,), dynamic_shapes=({0: batch},))",
        ),
        errors=(
            ("specialized it to be a constant", MSG_BATCH_OF_ONE),
            ("to be a tuple of example positional inputs", "The arguments stand in a tuple: (two,)."),
            ("top-level keys must be the arg names", "An entry for each argument: dynamic_shapes=({0: batch},)."),
            ("argument 'tensors'", "torch.cat takes a list: torch.cat([example, example])."),
            (
                "must have same reduction dim",
                "Two images lie along axis 0, (2, 1, H, W): torch.cat([...]) joins there.",
            ),
            ("Expected more than 1 value per channel", "BatchNorm is still in training mode: evaluating(model)."),
        ),
    ),
    Exercise(
        id="export.parity",
        title="How far apart?",
        check=check_parity,
        hints=(
            "One number for each batch size, then the largest. What can hide a difference?",
            "Shapes first (broadcasting), then torch.isfinite(...).all(), then (a - b).abs().max().item().",
            "if a.shape != b.shape or not torch.isfinite(a - b).all(): return math.inf",
        ),
        errors=(
            ("must match the size of tensor", "Compare the shapes before you subtract."),
            ("out of bounds", "images[:size] are the first images, images[size] is a single one."),
        ),
    ),
    Exercise(
        id="export.branch",
        title="A decision for each image",
        check=check_branch,
        hints=(
            "A mean for each image; then choose, without Python's if.",
            "pixels.mean((1, 2, 3), keepdim=True) and torch.where(condition, a, b).",
            "torch.where(pixels.mean((1, 2, 3), keepdim=True) > 127.5, 255 - pixels, pixels)",
        ),
        errors=(
            ("Boolean value of Tensor", "`if` needs one truth value, and there is one for each image: torch.where."),
            ("only batches of spatial targets", "torch.where(condition, a, b) takes three tensors."),
            ("must match the size", "The condition is to have shape (N, 1, 1, 1): mean((1, 2, 3), keepdim=True)."),
        ),
    ),
    Exercise(
        id="export.int8",
        title="Weights in eight bits",
        check=check_int8,
        hints=(
            "The largest weight of a row becomes 127 or -127. What is one unit worth then?",
            "weight.abs().amax(1), torch.where for rows of zeros, .round(), .to(torch.int8).",
            "scale = where(largest > 0, largest / 127, 1.0); q = (weight / scale[:, None]).round().to(torch.int8)",
        ),
        errors=(("must match the size", "The scales are (O,), the matrix (O, I): scale[:, None]."),),
    ),
    Exercise(
        id="export.int8-linear",
        title="A layer in whole numbers",
        check=check_int8_linear,
        hints=(
            "Round x as the weights were rounded. The sum of products doesn't fit into 8 bits.",
            "quantize_rows(x), .int() on both, @, then x_scale[:, None] * scale.",
            "(xq.int() @ q.int().T) * (x_scale[:, None] * scale) + bias",
        ),
        errors=(
            ("expected m1 and m2 to have the same dtype", "Both sides whole numbers: xq.int() @ q.int().T."),
            ("shapes cannot be multiplied", "q is (O, I): its transpose."),
            ("must match the size", "The products are (N, O), the scales of x (N,): x_scale[:, None]."),
        ),
    ),
    Exercise(
        id="export.read-request",
        title="Nothing but pixels",
        check=check_read_request,
        hints=(
            "From outside to inside: content type, length, JSON, key, list, rows, pixels. Return at the first fault.",
            "content_type.split(';'), len(body), json.loads in try / except (ValueError, RecursionError), type().",
            "all(type(p) in (int, float) and math.isfinite(p) and 0 <= p <= 255 for row in image for p in row)",
        ),
    ),
    Exercise(
        id="export.gather",
        title="Wait, but not for ever",
        check=check_gather,
        hints=(
            "The first request may take any time to come. From then on, the clock runs.",
            "waiting.get(); end = time.monotonic() + wait_s; waiting.get(timeout=...); queue.Empty.",
            "while len(batch) < most: try: batch.append(waiting.get(timeout=max(0, end - time.monotonic())))",
        ),
        errors=(
            ("'timeout' must be a non-negative number", "The time can be over already: max(0, end - now)."),
            (
                "it came out of the function",
                "queue.Empty says that the time is up: catch it, and return what there is.",
            ),
        ),
    ),
    Exercise(
        id="export.best-batch",
        title="Quick enough, and most",
        check=check_best_batch,
        hints=(
            "First throw out the sizes that break the promise, then compare images per second.",
            "2 * ms <= limit_ms; 1000 * batch / ms; max(..., key=...).",
            "fitting = {n: 1000 * n / ms for n, ms in latency_ms.items() if 2 * ms <= limit_ms}",
        ),
        errors=(("empty", "If no size fits, return None before max()."),),
    ),
    Exercise(
        id="export.percentiles",
        title="The slowest of a hundred",
        check=check_percentiles,
        hints=(
            "Sort. At which place do 95 % of the values end? And where does a request that failed belong?",
            "math.inf for None, sorted, math.ceil(p * n / 100) - 1.",
            "ordered = sorted(math.inf if t is None else t for t in times)",
        ),
        errors=(
            ("NoneType", "None stands for a request without an answer: as slow as can be, math.inf."),
            ("out of range", "The place of p in n values is ceil(p * n / 100) - 1."),
        ),
    ),
    Exercise(
        id="export.clinic-preprocess",
        title="Good in the notebook, nonsense in the service",
        check=check_clinic_preprocess,
        kind=CLINIC,
        finding="model.mixes-batch",
        hints=(
            "Prepare one image alone, and the same image in a batch.",
            "Whatever is computed from the request itself was not there in training.",
            "return (pixels / 255 - mean) / std",
        ),
    ),
    Exercise(
        id="export.clinic-train-mode",
        title="Another answer each time",
        check=check_clinic_train_mode,
        kind=CLINIC,
        finding="export.train-mode",
        hints=(
            "Call the result twice with the same images.",
            "The exported program has no eval() any more: the mode is fixed when it is captured.",
            "with evaluating(model): program = torch.export.export(...)",
        ),
        errors=(
            ("Unable to call ExportedProgram directly", "return program.module()"),
            ("Guard failed", "The batch was free, and is to stay so: keep dynamic_shapes."),
            ("Calling eval() is not supported", "The mode was fixed when the program was captured. Switch before."),
            ("Expected more than 1 value per channel", "BatchNorm still wants a batch: model.eval() before exporting."),
        ),
    ),
    Exercise(
        id="export.clinic-fixed-batch",
        title="Two images, or none",
        check=check_clinic_fixed_batch,
        kind=CLINIC,
        finding="export.static-batch",
        hints=(
            "Call the result with one image, then with five.",
            "Two things fix the batch: the loop over the images, and the export without dynamic_shapes.",
            "return self.layer(images.flatten(1)), and dynamic_shapes=({0: torch.export.Dim('batch')},)",
        ),
        errors=(
            ("specialized it to be a constant", MSG_BATCH_AS_NUMBER),
            ("must have same reduction dim", "Each image keeps a row of its own: flatten(1) leaves axis 0 alone."),
        ),
    ),
    Exercise(
        id="export.clinic-thread",
        title="Gradients off, in the wrong thread",
        check=check_clinic_thread,
        kind=CLINIC,
        unseen="It examines training, and not the threads of a service.",
        hints=(
            "The service calls predict in a thread of its own. Print torch.is_grad_enabled() there.",
            "set_grad_enabled speaks for the thread that calls it, and there for good.",
            "with torch.no_grad(): return model(torch.from_numpy(pixels)).numpy()",
        ),
        errors=(
            ("Can't call numpy() on Tensor that requires grad", "In this thread gradients are on."),
            ("must be Tensor, not numpy.ndarray", "The model takes tensors: torch.from_numpy(pixels)."),
        ),
    ),
    Exercise(
        id="export.clinic-answers",
        title="My digits, your digits",
        check=check_clinic_answers,
        kind=CLINIC,
        unseen="It examines the model, and not who gets which answer.",
        hints=(
            "Send two requests of different length and compare.",
            "The requests were sorted before the model, and nobody sorted back.",
            "np.concatenate(requests), then np.split in the same order.",
        ),
    ),
    Exercise(
        id="export.clinic-blocking",
        title="The health check fails under load",
        check=check_clinic_blocking,
        kind=CLINIC,
        unseen="It examines training, and no web server.",
        hints=(
            "While one request is computed, what do the others do?",
            "An `async def` without await holds the whole server. A function that takes long belongs into a thread.",
            'return {"digit": await run_in_threadpool(read_digit, await request.body())}',
        ),
        errors=(
            ("'coroutine' object is not iterable", "run_in_threadpool(...) gives something to wait for: await it."),
            ("must be callable", "Hand over the function and its argument: run_in_threadpool(read_digit, body)."),
            ("not 'coroutine'", "request.body() has to be awaited, too; read_digit takes its bytes."),
            ("not 'Request'", "read_digit takes the bytes of the body: await request.body()."),
        ),
    ),
]
