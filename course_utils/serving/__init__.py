"""A model behind HTTP: what may come in, how requests share a batch, how the server starts and stops.

Nothing here imports PyTorch. A service that runs an ONNX file needs NumPy, ONNX Runtime and a web framework, and starts
in a second.

Read in this order: `limits` (from bytes to pixels, or a refusal), `batcher` (requests that share a batch), `app` (the
routes), `server` (in a thread or in a process of its own), `client` (real requests, good and bad, and many at once).
"""

from course_utils.serving.app import make_app
from course_utils.serving.batcher import Batcher, Busy, Closed, Counts
from course_utils.serving.client import (
    BadRequest,
    Load,
    bad_requests,
    connect,
    load_test,
    percentile,
    request_body,
    send_bad_requests,
)
from course_utils.serving.limits import Limits, Refusal, read_images
from course_utils.serving.runtime import OnnxModel
from course_utils.serving.server import Service, ServiceProcess, ServingError, service_threads

__all__ = [
    "BadRequest",
    "Batcher",
    "Busy",
    "Closed",
    "Counts",
    "Limits",
    "Load",
    "OnnxModel",
    "Refusal",
    "Service",
    "ServiceProcess",
    "ServingError",
    "bad_requests",
    "connect",
    "load_test",
    "make_app",
    "percentile",
    "read_images",
    "request_body",
    "send_bad_requests",
    "service_threads",
]
