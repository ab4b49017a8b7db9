"""Who may import whom."""

from __future__ import annotations

import sys
from typing import Any

ENGINE_LIBRARIES = {"msgspec", "zmq"}
CONTRACTS = (
    "model attention kernels quantization cache policy tokenizer grammar parsers batch request sampling layers specs "
    "config drawing transfer media adapters executor coded"
).split()
ALLOWED = {
    "core": {"sglang_plug", "torch", "pluggy"},
    "builtin_models": {"sglang_plug", "sglang_plug_models", "torch"},
    "builtin_backends": {"sglang_plug", "sglang_plug_backends", "torch"},
    "api": {"sglang_plug", "sglang_plug_api", "fastapi", "starlette", "uvicorn", "pydantic", "pydantic_settings"}
    | {"httpx", "yaml", "prometheus_client"},
}
EXTRA = {  # what one folder or file may import besides
    "api/sglang_plug_api/batches": {"python_multipart"},
    "api/sglang_plug_api/patience.py": {"h11"},
    "api/sglang_plug_lang": {"sglang_plug_lang"},
    "core/sglang_plug/engine": ENGINE_LIBRARIES,
    "core/sglang_plug/settings.py": {"msgspec"},
    "core/sglang_plug/testing": {"transformers"},
    "builtin_backends/sglang_plug_backends/executors": {"zmq"},
    "builtin_backends/sglang_plug_backends/flashinfer": {"flashinfer"},
    "builtin_backends/sglang_plug_backends/huggingface": {
        "transformers",
        "huggingface_hub",
        "jinja2",
        "safetensors",
        "tokenizers",
    },
    "builtin_backends/sglang_plug_backends/llguidance": {"llguidance"},
    "builtin_backends/sglang_plug_backends/lora": {"safetensors"},
    "builtin_backends/sglang_plug_backends/outlines": {"outlines_core"},
    "builtin_backends/sglang_plug_backends/triton": {"triton"},
    "builtin_backends/sglang_plug_backends/xgrammar": {"xgrammar"},
    "builtin_backends/sglang_plug_backends/weights": {"safetensors"},
    "builtin_models/sglang_plug_models/checkpoint_parts.py": {"transformers"},
    "builtin_models/sglang_plug_models/gemma_vl": {"transformers", "PIL"},
    "builtin_models/sglang_plug_models/glm_vl": {"transformers"},
    "builtin_models/sglang_plug_models/grid_images.py": {"PIL"},
    "builtin_models/sglang_plug_models/idefics": {"transformers", "PIL", "numpy"},
    "builtin_models/sglang_plug_models/internvl": {"transformers", "PIL"},
    "builtin_models/sglang_plug_models/llava": {"transformers", "PIL", "numpy"},
    "builtin_models/sglang_plug_models/mistral_vl": {"transformers", "PIL", "numpy"},
    "builtin_models/sglang_plug_models/pictures.py": {"PIL", "numpy"},
    "builtin_models/sglang_plug_models/projected.py": {"transformers"},
    "builtin_models/sglang_plug_models/qwen_next": {"transformers"},
    "builtin_models/sglang_plug_models/qwen_vl": {"transformers"},
    "builtin_models/sglang_plug_models/transformers_fallback": {"transformers"},
}


def test_packages_import_only_what_the_architecture_allows(sources: list[Any]) -> None:
    for source in sources:
        extra = [libraries for place, libraries in EXTRA.items() if source.path.as_posix().startswith(place)]
        allowed = ALLOWED[source.shelf].union(sys.stdlib_module_names, *extra)
        assert {name.partition(".")[0] for name in source.imports()} <= allowed, source.path


def test_contracts_and_built_ins_do_not_know_the_engine(sources: list[Any]) -> None:
    for source in sources:
        if source.shelf.startswith("builtin") or source.module.split(".")[1:2] in [[name] for name in CONTRACTS]:
            assert not [name for name in source.imports() if name.startswith("sglang_plug.engine")], source.path


def test_the_language_stands_alone(sources: list[Any]) -> None:
    language = [source for source in sources if source.path.is_relative_to("api/sglang_plug_lang")]
    assert len(language) > 10
    for source in language:
        names = {name.partition(".")[0] for name in source.imports()}
        assert names <= {"sglang_plug_lang", "httpx", *sys.stdlib_module_names}, source.path
