"""Block keys differ for everything that determines a block's content."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from sglang_plug import Request
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug_backends.kv_tiers.block_keys import BlockKeys, namespace_digest
from sglang_plug_backends.kv_tiers.weights_digest import WeightsDigest


def keys(tokens: tuple[int, ...], *, salt: str = "", namespace: bytes = bytes(32)) -> list[bytes]:
    sequence = Sequence.of(Request(id="one", tokens=tokens, salt=salt), 100)
    result: list[bytes] = []
    BlockKeys(namespace, 4).extend(result, sequence, len(tokens) // 4)
    return result


def test_a_key_depends_on_all_tokens_before_it() -> None:
    first, second = keys((1, 2, 3, 4, 5, 6, 7, 8, 9)), keys((1, 2, 3, 4, 5, 6, 7, 9))
    assert len(first) == 2 and first[0] == second[0] and first[1] != second[1]
    assert keys((5, 6, 7, 8))[0] not in first


def test_keys_can_be_extended_later() -> None:
    sequence = Sequence.of(Request(id="one", tokens=tuple(range(30))), 100)
    result: list[bytes] = []
    for count in (0, 2, 2, 5, 7):
        BlockKeys(bytes(32), 4).extend(result, sequence, count)
    assert result == keys(tuple(range(30)))


@pytest.mark.parametrize("other", [{"salt": "a"}, {"namespace": bytes([1]) * 32}])
def test_tenants_and_namespaces_share_nothing(other: dict[str, Any]) -> None:
    tokens = (1, 2, 3, 4)
    assert keys(tokens) != keys(tokens, **other)


def test_a_namespace_depends_on_each_fact() -> None:
    facts = [
        namespace_digest({"a": "1"}, b"w", "l"),
        namespace_digest({"a": "2"}, b"w", "l"),
        namespace_digest({"a": "1"}, b"v", "l"),
        namespace_digest({"a": "1"}, b"w", "m"),
    ]
    assert len(set(facts)) == 4 and facts[0] == namespace_digest({"a": "1"}, b"w", "l")


@dataclass
class Packed:
    """Packed weights that are not a parameter of their module."""

    codes: torch.Tensor = field(default_factory=lambda: torch.arange(6, dtype=torch.uint8))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.bfloat16)
        nn.init.ones_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.register_buffer("table", torch.arange(5), persistent=False)
        self.packed = {"q": [Packed()]}


def digest(model: nn.Module) -> bytes:
    result = WeightsDigest(model)
    result.wait(60)
    assert result.value is not None
    return result.value


def test_equal_weights_have_one_digest() -> None:
    assert digest(Small()) == digest(Small())


def test_every_number_counts() -> None:
    models = [Small() for _ in range(5)]
    with torch.no_grad():
        models[1].layer.weight[1, 2] += 1
        models[2].layer.bias[0] = -0.0
        models[3].get_buffer("table")[4] = 7
        models[4].packed["q"][0].codes[5] = 9
    assert len({digest(model) for model in models}) == 5
