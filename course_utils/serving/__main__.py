"""``python -m course_utils.serving MODEL.onnx``: the service as a process. It ends when its standard input does."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys

from course_utils.errors import CourseError
from course_utils.serving.app import make_app
from course_utils.serving.runtime import OnnxModel
from course_utils.serving.server import Service


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m course_utils.serving", description="Serve a model of digits.")
    parser.add_argument("model", help="an ONNX file: raw pixels (N, 1, 28, 28) to scores (N, 10)")
    parser.add_argument("--port", type=int, default=0, help="of the loopback interface; 0 takes a free one")
    parser.add_argument("--threads", type=int, default=1, help="cores for one call of the model")
    parser.add_argument("--max-batch", type=int, default=64, help="images per call of the model")
    parser.add_argument("--max-wait", type=float, default=0.002, help="seconds that a request waits for company")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started us decides
    try:
        model = OnnxModel(options.model, threads=options.threads)
        app = make_app(model, about=model.metadata, max_batch=options.max_batch, max_wait_s=options.max_wait)
        with Service(app, port=options.port) as service:
            print(json.dumps({"port": service.port, "has_torch": "torch" in sys.modules}), flush=True)
            while os.read(sys.stdin.fileno(), 4096):  # ends when the other side closes, or dies
                pass
    except CourseError as error:
        raise SystemExit(error.sentence) from None


if __name__ == "__main__":
    main()
