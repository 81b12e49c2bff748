"""Exercises and the clinic item of lesson 09: titles, hints, and where each check is."""

from __future__ import annotations

from course_utils.exercises.capstone_data import check_restore, check_suspects, check_train, check_unusable
from course_utils.exercises.capstone_run import check_clinic_run
from course_utils.exercises.capstone_service import check_acceptance, check_package, check_report
from course_utils.exercises.registry import CLINIC, Exercise

EXERCISES = [
    Exercise(
        id="capstone.unusable",
        title="Images that nothing can be learned from",
        check=check_unusable,
        hints=(
            "Two kinds: some pixels are not a number, or there is no ink at all.",
            "images.flatten(1) has one row for each image; isnan(), any(1) and amax(1) work on rows.",
            "rows.isnan().any(1) | (rows.amax(1) == 0)",
        ),
    ),
    Exercise(
        id="capstone.restore",
        title="From raw pixels to what the network reads",
        check=check_restore,
        hints=(
            "How much ink is on a page with a digit, and how much on an inverted one?",
            "Scale to 0..1, then look at the mean of each image on its own: above one half, it is inverted.",
            "x = images / 255; torch.where(x.mean((1, 2, 3), keepdim=True) > 0.5, 1 - x, x)",
        ),
        errors=(
            ("must match the size of tensor b", "One number for each image must keep its axes: keepdim=True."),
            ("is ambiguous", "if decides once for the whole batch. torch.where decides for each image."),
        ),
    ),
    Exercise(
        id="capstone.clinic-run",
        title="The run they left behind",
        check=check_clinic_run,
        kind=CLINIC,
        finding="loss.softmax-before-cross-entropy",
        hints=(
            "Ask of each line: what does the network read, what does the loss get, what does a step start from, in "
            "which mode does an epoch start, and what is a mean of batches worth?",
            "doctor.examine(**make_run(…)) names the line and a repair for each. Repair one, run again.",
            "images / 255; no Softmax; zero_grad before backward; back to train mode after evaluate; count the right "
            "ones and divide by all",
        ),
    ),
    Exercise(
        id="capstone.train",
        title="Train, and get the same again",
        check=check_train,
        hints=(
            "Three things raise the balanced accuracy: a loss that weights rare classes, augmentation, enough epochs.",
            "Seeds: the first weights, the order of the batches, the augmentation and Dropout. seeded(seed) covers all "
            "that is drawn inside its block, stream(seed, …) gives a generator of its own.",
            "OneCycleLR up to 1e-2 with AdamW, 8 epochs of batches of 64, class weights 1 / count, affine_augment on "
            "each batch",
        ),
        errors=(("should be the same", "The images are float32, and so must be the weights: no double()."),),
    ),
    Exercise(
        id="capstone.suspects",
        title="Labels that are probably wrong",
        check=check_suspects,
        needs=("capstone.train",),
        hints=(
            "A network that was not trained on an example has an opinion about its label. Cut the data into three "
            "parts, train on two of them, and ask about the third.",
            "Where it disagrees, who gave the label? Count for each annotator. Believe the network against the hasty "
            "one; against the others only if it is very sure. Give rare classes more weight in the loss.",
            "differs = predicted != labels; hasty = the annotator with the largest share of them; "
            "differs & ((annotators == hasty) | (probability of the label < 0.05))",
        ),
    ),
    Exercise(
        id="capstone.package",
        title="One small file",
        check=check_package,
        hints=(
            "The file takes raw pixels. So the restoring must be inside, before the network.",
            "A module that calls restore and then the network; a copy in eval mode; to_onnx; quantize_onnx.",
            "to_onnx(Reader(copy.deepcopy(model).eval()), example, folder / 'float.onnx'); "
            "quantize_onnx(folder / 'float.onnx', folder / 'digits.onnx')",
        ),
        errors=(("can't be exported", "The exporter needs one path for all batches: torch.where, no loop, no if."),),
    ),
    Exercise(
        id="capstone.report",
        title="Honest numbers",
        check=check_report,
        hints=(
            "Which number does a customer with one image wait for?",
            "Time single-image calls one by one with clock(), leave out the first, take the median. "
            "path.stat().st_size is the size.",
            "for i in range(30): start = clock(); predict(images[i : i + 1]); times.append(clock() - start); then "
            "latency = 1000 * median(times[1:])",
        ),
    ),
    Exercise(
        id="capstone.acceptance",
        title="The acceptance test",
        check=check_acceptance,
        needs=(
            "capstone.unusable",
            "capstone.restore",
            "capstone.train",
            "capstone.suspects",
            "capstone.package",
            "capstone.report",
        ),
        hints=(
            "Put your parts together in the order of the lesson. Nothing new is needed.",
            "unusable, restore, suspects, train on what is left; package; report on some examples that were held back; "
            "make_app(OnnxModel(path), about=…).",
            "facts = report(model, path, images, labels, time.perf_counter); "
            "about={name: str(value) for name, value in facts.items()}",
        ),
    ),
]
