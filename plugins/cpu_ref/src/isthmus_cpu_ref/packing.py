"""Which weights the CPU kernels of ONNX Runtime pack when a session is made, and how large the packed form is.

Found by trying each operator with version 1.32; packed floats take what they took before, up to padding.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

PACKED_INPUTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Attention", "ConvTranspose", "FusedGemm", "Gemm", "QAttention"), (1,)),
    **dict.fromkeys(("GRU", "LSTM"), (1, 2)),
}
PACKED_MATRICES: Mapping[str, int] = {
    **dict.fromkeys(("DynamicQuantizeMatMul", "FusedMatMul", "MatMul", "MatMulInteger", "MatMulIntegerToFloat"), 1),
    "QLinearMatMul": 3,
}
"""Packed if it is one matrix, not if it is a batch of them."""
QUANTIZED = "MatMulNBits"
"""Many times slower when not packed: 370 to 520 ms instead of 10 per token of a small language model."""


def packed_inputs(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> list[int]:
    """Positions of the weights that the node's kernel packs, and then reads no more."""
    inputs = PACKED_INPUTS.get(node.op_type, ())
    if node.op_type in PACKED_MATRICES:
        matrix = PACKED_MATRICES[node.op_type]
        tensor = weights.get(node.input[matrix])
        inputs = (matrix,) if tensor is not None and len(tensor.dims) <= 2 else ()
    elif node.op_type == QUANTIZED:
        inputs = (1, 2, 3) if _rounds_activations(node) else (1,)
    return [i for i in inputs if i < len(node.input) and node.input[i] in weights]


def packed_bytes(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> int:
    """Bytes of the packed copies the node's kernel makes."""
    packed = [weights[node.input[i]] for i in packed_inputs(node, weights)]
    if node.op_type == QUANTIZED and packed and _rounds_activations(node):
        columns, blocks = packed[0].dims[0], packed[0].dims[1]
        return place(packed[0])[1] + 12 * int(columns * blocks)  # scales and block sums: three float32 per block
    return sum(place(tensor)[1] for tensor in packed)


def place(tensor: onnx.TensorProto) -> tuple[int, int]:
    """Offset and length of an external tensor."""
    fields = {field.key: field.value for field in tensor.external_data}
    return int(fields["offset"]), int(fields["length"])


def _rounds_activations(node: onnx.NodeProto) -> bool:
    return any(a.name == "accuracy_level" and a.i == 4 for a in node.attribute)
