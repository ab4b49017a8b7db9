"""Options that need a step extension which is not loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sglang_plug import ConfigError, EngineConfig
from sglang_plug.config import BackendOptions, SpeculativeOptions
from sglang_plug.engine.extensions.build import refuse_unserved_options


def test_an_option_is_refused_only_if_it_is_set() -> None:
    refuse_unserved_options(EngineConfig(), ())
    drafting = replace(EngineConfig(), speculative=SpeculativeOptions(algorithm="ngram"))
    refuse_unserved_options(drafting, ("speculation",))
    with pytest.raises(ConfigError, match="--speculative-algorithm ngram: the step extension 'speculation'"):
        refuse_unserved_options(drafting, ("another",))


def test_an_option_that_switches_a_feature_off_needs_no_extension() -> None:
    refuse_unserved_options(replace(EngineConfig(), backends=BackendOptions(grammar="none")), ())
    with pytest.raises(ConfigError, match="--grammar-backend xgrammar: the step extension 'structured-outputs'"):
        refuse_unserved_options(replace(EngineConfig(), backends=BackendOptions(grammar="xgrammar")), ())
