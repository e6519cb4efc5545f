"""Which dtypes the products of an ONNX model have, read from its own nodes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ampft.export.certificate.measured import onnx_dtypes

WIDTH = 32
ONE_BLOCK = {"K": WIDTH, "N": WIDTH, "bits": 4, "block_size": WIDTH}


@pytest.mark.parametrize(
    ("levels", "dtype"),
    [((4,), "int8"), ((4, 4), "int8"), ((None,), "float32"), ((1,), "float32"),
     ((4, None), "float32")],
)  # fmt: skip
def test_weights_in_blocks_are_multiplied_as_all_their_nodes_say(tmp_path, levels, dtype):
    blocks = np.zeros((WIDTH, 1, WIDTH // 2), dtype=np.uint8)
    nodes = [
        helper.make_node(
            "MatMulNBits", [f"x{i}", "blocks", "scales"], [f"x{i + 1}"], domain="com.microsoft",
            **ONE_BLOCK, **({} if level is None else {"accuracy_level": level}),
        )
        for i, level in enumerate(levels)
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "blocks",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info(f"x{len(levels)}", TensorProto.FLOAT, [1, WIDTH])],
        [numpy_helper.from_array(blocks, "blocks"),
         numpy_helper.from_array(np.ones(WIDTH, dtype=np.float32), "scales")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    measured = onnx_dtypes(path, {"x0": np.ones((1, WIDTH), dtype=np.float32)})
    assert [(row.inputs, row.count) for row in measured.products] == [((dtype, dtype), len(levels))]
    assert measured.weights == {"uint8": blocks.nbytes, "float32": 4 * WIDTH}
