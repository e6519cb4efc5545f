import pytest
import torch
from tiny_encoders import ENCODERS, loss_and_gradient, relative_error, right_padded, tiny

from ampft.fast.packing.install import install_packing
from ampft.fast.packing.verification import verify_packing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
# float32 kernels of a GPU sum in another order, and in blocks.
FP32_TOLERANCE = 1e-5
BF16_TOLERANCE = 3e-2


def on_gpu(model):
    return {name: tensor.cuda() for name, tensor in right_padded(model, [5, 17, 1, 17]).items()}


@pytest.mark.parametrize("name", sorted(ENCODERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_and_gradients_on_a_gpu(name, dtype):
    model = tiny(name).cuda().eval()
    batch = on_gpu(model)
    tolerance = FP32_TOLERANCE if dtype == torch.float32 else BF16_TOLERANCE
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        assert max(verify_packing(model, batch)) <= tolerance
    # `loss_and_gradient` creates its labels on the default device.
    with torch.device("cuda"), torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        expected = loss_and_gradient(model, batch)
        handle = install_packing(model)
        actual = loss_and_gradient(model, batch)
    assert handle.paths == {"packed": 1}
    for one, other in zip(actual, expected, strict=True):
        assert relative_error(one, other) <= tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_training_with_dropout_on_a_gpu(dtype):
    model = tiny("bert").cuda()
    install_packing(model)
    batch = on_gpu(model)
    with torch.device("cuda"), torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        first, second = (loss_and_gradient(model, batch) for _ in range(2))
    assert first[2].isfinite().all()
    assert not torch.equal(first[0], second[0])
