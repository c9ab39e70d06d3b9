"""Runs in an environment with onnxruntime-cann: one model on the CANN provider and on the CPU, compared."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime as ort

options = {"device_id": 0, "enable_cann_graph": True, **({"precision_mode": sys.argv[2]} if len(sys.argv) > 2 else {})}
session = ort.InferenceSession(sys.argv[1], providers=[("CANNExecutionProvider", options), "CPUExecutionProvider"])
reference = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
errors = []
for _ in range(3):
    (got,), (want,) = session.run(None, {"x": x}), reference.run(None, {"x": x})
    errors.append(float(np.abs(got - want).max()))
    x = got @ np.ones((32, 64), np.float32) / 64
print(json.dumps({"providers": session.get_providers(), "errors": errors, "ort": ort.__version__}))
