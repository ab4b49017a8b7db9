"""ALiBi biases in dimensions of the keys equal biases that are added to the logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sglang_plug import AttentionShape, BuildEnv, ConfigError
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_models.common.alibi import Alibi, BiasedAttention, slopes

FAR = 30_000


def surroundings(kv_dtype: torch.dtype | None = None) -> BuildEnv:
    shape = AttentionShape(heads=2, kv_heads=2, dim=16, value_dim=8, layers=1, kv_dtype=kv_dtype)
    return BuildEnv(attention=TorchAttention(shape, torch.device("cpu")))


def written_out(heads: int) -> Tensor:
    """Return the slopes of the paper for powers of two, computed from the formula."""
    return torch.tensor([2 ** (-8 * (head + 1) / heads) for head in range(heads)])


def test_slopes_are_the_papers() -> None:
    for heads in (1, 8, 32):
        torch.testing.assert_close(slopes(heads), written_out(heads))
    torch.testing.assert_close(slopes(12), torch.cat((written_out(8), written_out(16)[:8:2])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_far_positions_keep_their_differences_in_every_dtype(dtype: torch.dtype) -> None:
    """Differences of biases stay exact at large positions, where bfloat16 numbers are more than a hundred apart."""
    positions = torch.arange(FAR, FAR + 40)
    result = Alibi(slopes(12))(positions, dtype)
    assert result.dtype == dtype
    expected = positions[:, None].double() * slopes(12).double()
    torch.testing.assert_close(result.double().sum(-1), expected, atol=0.01, rtol=0)


def test_rounded_positions_are_bfloat16s() -> None:
    positions = torch.tensor([3, 255, 257, 1001])
    result = Alibi(slopes(4), rounded=True)(positions, torch.float32).sum(-1)
    assert torch.equal(result, (positions[:, None].bfloat16() * slopes(4).bfloat16()).float())
    assert result[2, 0] != 257 * slopes(4)[0]


def test_a_pool_of_eight_bits_is_refused() -> None:
    BiasedAttention(surroundings(torch.bfloat16), 0, heads=2, scale=1.0)
    with pytest.raises(ConfigError, match="add --kv-cache-dtype bfloat16"):
        BiasedAttention(surroundings(torch.float8_e4m3fn), 0, heads=2, scale=1.0)
