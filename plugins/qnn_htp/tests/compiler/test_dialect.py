"""What the graphs of the dialect become on the HTP, computed by the emulator."""

import math

import attrs
import isthmus_tiny_internvl
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from isthmus import open_device
from isthmus.graph.builder import GraphBuilder
from isthmus.graph.weights import inline
from isthmus.models.export import export
from isthmus.models.spelling.gelu import gelu
from isthmus.models.spelling.rms_norm import rms_norm
from isthmus_qnn_htp import targets

DIALECT = targets.dialect("sm8650")


def sqnr(got, want):
    """Signal to noise in dB."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    return 10 * np.log10((want**2).sum() / ((got - want) ** 2).sum())


def compile_and_run(graphs, compiled, build, x, dialect=DIALECT):
    """``build(g, value)`` as a graph x -> y: the emulator's y."""
    g = GraphBuilder("g", dialect, np.dtype(np.float32))
    g.output(build(g, g.input("x", x.shape)), "y", x.shape)
    model = g.model()
    for initializer in model.graph.initializers.values():
        if initializer.name in g.weights:
            initializer.const_value = inline(g.weights[initializer.name])
    path = graphs.root / f"{dialect.rms_norm}.onnx"
    ir.save(model, path)
    with open_device("qnn_htp") as device, device.load(compiled(path)) as program:
        return program.run("main", {"x": x})["y"]


def test_rms_norm_survives_a_residual_stream_whose_square_is_over_fp16(graphs, compiled):
    """SmolLM2's residual stream reaches 24,900. The decomposed spelling is the control: it does not survive."""
    x = np.random.default_rng(0).standard_normal((1, 8, 64)).astype(np.float32) * 5000
    weight = np.random.default_rng(1).uniform(0.5, 2, 64).astype(np.float32)
    want = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * weight

    def build(g, value):
        return rms_norm(g, value, x.shape, lambda: weight, 1e-6, "norm")

    assert sqnr(compile_and_run(graphs, compiled, build, x), want) > 50
    decomposed = attrs.evolve(DIALECT, rms_norm="decomposed")
    assert sqnr(compile_and_run(graphs, compiled, build, x, decomposed), want) < 10


def test_gelu_in_the_dialects_order_is_fused(graphs, compiled):
    x = np.random.default_rng(0).standard_normal((1, 8, 64)).astype(np.float32) * 3
    got = compile_and_run(graphs, compiled, lambda g, value: gelu(g, value, "gelu"), x)
    erf = np.vectorize(math.erf)
    assert sqnr(got, x * (1 + erf(x / np.sqrt(2))) / 2) > 45


@pytest.fixture(scope="module")
def internvl(tmp_path_factory):
    return export(isthmus_tiny_internvl.CHECKPOINT, tmp_path_factory.mktemp("internvl") / "set", dialect=DIALECT)


def feeds(entry):
    """Plausible inputs: 20 past tokens, a causal mask over the new ones, their rotary angles."""
    rng, found = np.random.default_rng(0), {}
    for spec in entry.inputs:
        array = rng.standard_normal(spec.shape)
        if spec.name == "last_index":
            array = np.array([entry.inputs[0].shape[1] - 1])
        elif spec.name == "attention_mask":
            new, context = spec.shape[2:]
            array = np.full(spec.shape, DIALECT.mask_value)
            array[..., :20] = 0
            array[0, 0, :, context - new :] = np.triu(np.full((new, new), DIALECT.mask_value), 1)
        elif spec.name in ("cos", "sin"):
            angle = np.arange(20, 20 + spec.shape[2])[:, None] / 1e6 ** (np.arange(spec.shape[3]) / spec.shape[3])
            array = getattr(np, spec.name)(angle)[None, None]
        found[spec.name] = array.astype(spec.dtype.numpy)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("io_dtype", ["as_graph", "float16"])
def test_the_bundled_internvl_runs_on_the_emulator_as_on_the_cpu(internvl, compiled, io_dtype):
    """Vision, prefill and decode, keys and values token-major: at least 45 dB of every output."""
    artifact = compiled(internvl, io_dtype=io_dtype)
    with open_device("qnn_htp") as device, device.load(artifact) as program:
        for name, spec in artifact.entries.items():
            inputs = feeds(spec)
            full = {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in inputs.items()}
            names = [t.name for t in spec.outputs]
            want = ort.InferenceSession(internvl.path / internvl.graphs[name]).run(names, full)
            got = program.run(name, inputs)
            assert min(sqnr(got[n], w) for n, w in zip(names, want)) > 45, name


@pytest.mark.slow
def test_builds_of_a_language_model_repeat(internvl, compiled):
    """Address randomisation is off in the compiler: with it, no two binaries of prefill or decode are equal."""
    assert compiled(internvl).manifest.files == compiled(internvl).manifest.files
