"""Running models on the simulated device."""

from __future__ import annotations

import numpy as np


def test_a_model_computes_what_the_graph_says(sim, linear):
    path, w, b = linear
    model = sim.load(path)
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    (y,) = sim.run(model, [x], [(4, 32)])
    np.testing.assert_allclose(y, x @ w + b, rtol=1e-5, atol=1e-5)
    sim.ok("aclmdlUnload", model)
    assert sim.isthmus_sim_live() == 0
