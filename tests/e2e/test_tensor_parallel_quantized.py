"""Tensor-parallel ranks serve checkpoints in every supported format of quantization."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError
from sglang_plug.config import ParallelOptions
from tests.quantized import write

from .test_quantized_checkpoints import FORMATS, MIXTURES, answer, blocks, config, expected

REFUSED_BY_RANKS = {
    "gptq-2-bits": "has 8 rows: in GPTQ they must be a multiple of 16",
    "fp8-blocks": "boundary 48 of a rank is not a multiple of the 32 columns",
    "fp8-compressed-blocks": "boundary 48 of a rank is not a multiple of the 32 columns",
    "gptq-same-order": "act-order .desc_act. groups",
    "gptq-own-order": "act-order .desc_act. groups",
    "gptq-odd-order": "act-order .desc_act. groups",
    "w4a16-ordered": "act-order .desc_act. groups",
    "gptq-odd-groups": "boundary .* of a rank is not a multiple of the 40 columns",
    "fp8-odd-blocks": "boundary .* of a rank is not a multiple of the (48 rows|40 columns|48 columns|40 rows)",
}


@pytest.mark.parametrize("format", FORMATS)
def test_ranks_share_what_is_stored(
    format: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    """Each rank keeps its shard in the stored format; matrices that cannot be sharded are refused."""
    described, pack = FORMATS[format]
    reference = write(tiny_model("mistral-7b"), tmp_path / "stored", described, pack)
    shared = dataclasses.replace(config(tmp_path / "stored"), parallel=ParallelOptions(tp_size=2, executor="threads"))
    if format in REFUSED_BY_RANKS:
        with pytest.raises(ConfigError, match=REFUSED_BY_RANKS[format]):
            serve(shared)
        return
    actual, tokens = answer(serve(shared))
    logprobs, continuation = expected(reference)
    assert actual == pytest.approx(logprobs, abs=3e-4)
    assert tokens == continuation


@pytest.mark.parametrize(("format", "family"), [("gptq", "qwen3-moe"), ("awq", "qwen3-moe"), ("awq", "phi-3-mini")])
def test_ranks_share_experts_and_fused_parts(
    format: str, family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    described, pack = MIXTURES[format] if family == "qwen3-moe" else FORMATS[format]
    reference = write(tiny_model(family), tmp_path / "stored", described, pack)
    shared = dataclasses.replace(config(tmp_path / "stored"), parallel=ParallelOptions(tp_size=2, executor="threads"))
    actual, tokens = answer(serve(shared))
    logprobs, continuation = expected(reference)
    assert actual == pytest.approx(logprobs, abs=3e-4)
    assert tokens == continuation


@pytest.mark.parametrize("family", ["mistral-7b", "phi-3-mini"])
def test_ranks_share_small_blocks(
    family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    described = {"quant_method": "fp8", "weight_block_size": [8, 16]}
    reference = write(tiny_model(family), tmp_path / "stored", described, partial(blocks, rows=8, columns=16))
    shared = dataclasses.replace(config(tmp_path / "stored"), parallel=ParallelOptions(tp_size=2, executor="threads"))
    actual, tokens = answer(serve(shared))
    logprobs, continuation = expected(reference)
    assert actual == pytest.approx(logprobs, abs=3e-4)
    assert tokens == continuation


@pytest.mark.parametrize("format", ["gptq", "w4a16"])
def test_ranks_share_a_head_in_four_bits(
    format: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    described, pack = FORMATS[format]
    described = {**described, "lm_head": True, "ignore": []}
    reference = write(tiny_model("mistral-7b"), tmp_path / "stored", described, pack, head=True)
    shared = dataclasses.replace(config(tmp_path / "stored"), parallel=ParallelOptions(tp_size=2, executor="threads"))
    actual, tokens = answer(serve(shared))
    logprobs, continuation = expected(reference)
    assert actual == pytest.approx(logprobs, abs=3e-4)
    assert tokens == continuation


@pytest.mark.parametrize("format", ["gptq", "awq", "w4a16-asymmetric", "w8a8"])
def test_ranks_share_random_weights_in_a_format(
    format: str, tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    """Random weights of several ranks are the shards of those of one rank."""
    options = config(tiny_model("mistral-7b").path)
    overrides = {"quantization_config": FORMATS[format][0]}
    model = dataclasses.replace(options.model, load_format="dummy", overrides=overrides)
    alone = dataclasses.replace(options, model=model)
    shared = dataclasses.replace(alone, parallel=ParallelOptions(tp_size=2, executor="threads"))
    (one_rank, tokens), (two_ranks, others) = (answer(serve(each)) for each in (alone, shared))
    assert one_rank == pytest.approx(two_ranks, abs=3e-4, rel=1e-4) and tokens == others
