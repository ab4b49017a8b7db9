from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, PreTrainedConfig

from sglang_plug_backends.huggingface.config_classes import config_class, import_checks

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4}
CHECKED = "from sglang_plug import CheckpointRequest, ConfigError\n" + (
    "from sglang_plug_backends.huggingface.checkpoint import open_checkpoint\n"
)


def in_a_process_of_its_own(code: str, *arguments: str) -> Any:
    command = [sys.executable, "-c", f"import json, sys\n{code}", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(done.stdout)


def test_a_family_has_its_own_class() -> None:
    assert config_class("llama") == (LlamaConfig, True)


@pytest.mark.parametrize("model_type", ["nothing-of-the-kind", None, 7, ["llama"]])
def test_what_transformers_does_not_know_has_the_base_class(model_type: object) -> None:
    assert config_class(model_type) == (PreTrainedConfig, False)


def test_reading_a_configuration_imports_no_layers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    code = CHECKED + (
        "config = open_checkpoint(CheckpointRequest(source=sys.argv[1])).config\n"
        "layers = 'transformers.activations', 'torch._dynamo', 'torch.distributed.tensor'\n"
        "before = [name for name in layers if name in sys.modules]\n"
        "from transformers.activations import ACT2FN\n"
        "from transformers import LlamaForCausalLM\n"
        "print(json.dumps([type(config).__name__, before, 'silu' in ACT2FN, LlamaForCausalLM.__name__]))"
    )
    assert in_a_process_of_its_own(code, str(tmp_path)) == ["LlamaConfig", [], True, "LlamaForCausalLM"]


def test_configurations_check_themselves_as_ever(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "initializer_range": 2.0}))
    code = CHECKED + (
        "try:\n"
        "    open_checkpoint(CheckpointRequest(source=sys.argv[1]))\n"
        "except ConfigError as error:\n"
        "    print(json.dumps(str(error)))"
    )
    result = in_a_process_of_its_own(code, str(tmp_path))
    assert "initializer_range" in result and "not a valid 'llama' configuration" in result


def test_another_release_without_these_checks_is_left_alone() -> None:
    before = set(sys.modules)
    for name in ("transformers.utils.no_such_checks", "transformers.no_such_folder.checks"):
        import_checks(name)
    assert set(sys.modules) == before
