"""The built-in logits processors keep the contract."""

from __future__ import annotations

import pytest

from sglang_plug import Plugins, SamplingParams
from sglang_plug.plugins.request_fields import usable_processors
from sglang_plug.testing import check_logits_processor

CASES = {
    "allowed-tokens": [
        SamplingParams(processor_fields={"allowed_token_ids": [3]}),
        SamplingParams(processor_fields={"allowed_token_ids": [9, 0, 3, 9]}, min_new_tokens=2, stop_token_ids=(3,)),
    ],
    "logit-bias": [SamplingParams(logit_bias={3: 1.5, 7: -200.0}), SamplingParams(logit_bias={0: 1e308})],
    "penalties": [
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(frequency_penalty=0.7, presence_penalty=-0.4),
        SamplingParams(repetition_penalty=1e-300, frequency_penalty=-2.0),
    ],
    "min-new-tokens": [
        SamplingParams(min_new_tokens=2, stop_token_ids=(3, 9)),
        SamplingParams(min_new_tokens=5, stop_token_ids=(0,)),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_a_built_in_processor_keeps_the_contract(name: str) -> None:
    check_logits_processor(name, CASES[name])


def test_the_built_in_processors_run_in_the_order_of_their_names_in_the_documents() -> None:
    names = [
        component.spec.name
        for component in usable_processors(Plugins.discover())
        if component.plugin.name == "logits_processors"
    ]
    assert names == ["allowed-tokens", "logit-bias", "penalties", "min-new-tokens"]
