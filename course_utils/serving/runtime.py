"""Run an exported model without PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from course_utils.errors import CourseError

ERRORS_ONLY = 3  # ONNX Runtime's log level


class OnnxModel:
    """A model in an ONNX file, called like a function: pixels (N, 1, H, W) in, logits (N, C) out, both float32.

    Args:
        path: the file.
        threads: how many cores one call may use.

    Raises:
        CourseError: if the file is missing or ONNX Runtime can't read it.
    """

    def __init__(self, path: Path | str, *, threads: int = 1) -> None:
        import onnxruntime  # here: a service of another kind needs none

        self.path, self.threads = Path(path), threads
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = ERRORS_ONLY
        if not self.path.is_file():
            raise CourseError(f"There is no model file {self.path.name!r}.", fix="Export the model first.")
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common class
            raise CourseError(
                f"ONNX Runtime can't read {self.path.name!r}.",
                got=str(error),
                expected="a whole ONNX model; weights that lie beside the file belong into the same folder",
                fix="export it again, into one file",
            ) from error
        (first, *others) = self._session.get_inputs()
        if others:
            raise CourseError(
                f"The model in {self.path.name!r} has several inputs.",
                got=", ".join(one.name for one in (first, *others)),
                expected="one: the images",
                fix="make the others constants before exporting",
            )
        self.input_name: str = first.name
        self.input_shape: list[int | str] = list(first.shape)  # an axis of any length has a name instead of a number
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Return one row of scores for each image, shape (N, C), float32."""
        feed = {self.input_name: np.ascontiguousarray(pixels, dtype=np.float32)}
        return self._session.run(None, feed)[0]
