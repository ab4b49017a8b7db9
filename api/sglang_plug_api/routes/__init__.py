"""The built-in routes. Each group can be blocked, for example with ``--block-plugin route:metrics``."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import RouteSpec, hookimpl
from sglang_plug.contracts.request import Task


@hookimpl
def register_routes() -> Iterator[RouteSpec]:
    generate = frozenset[Task]({"generate"})
    yield RouteSpec(
        name="chat", target=f"{__name__}.openai.chat:build", tasks=generate, summary="OpenAI: POST /v1/chat/completions"
    )
    yield RouteSpec(
        name="completions",
        target=f"{__name__}.openai.completions:build",
        tasks=generate,
        summary="OpenAI: /v1/completions",
    )
    yield RouteSpec(
        name="responses", target=f"{__name__}.openai.responses:build", tasks=generate, summary="OpenAI: /v1/responses"
    )
    yield RouteSpec(name="embeddings", target=f"{__name__}.openai.embeddings:build", summary="OpenAI: /v1/embeddings")
    yield RouteSpec(name="encode", target=f"{__name__}.native.encode:build", summary="native: /encode")
    yield RouteSpec(name="classify", target=f"{__name__}.native.classify:build", summary="/classify and /v1/classify")
    yield RouteSpec(name="rerank", target=f"{__name__}.native.rerank:build", summary="/v1/rerank")
    yield RouteSpec(name="models", target=f"{__name__}.openai.models:build", summary="OpenAI: /v1/models")
    yield RouteSpec(
        name="generate", target=f"{__name__}.native.generate:build", tasks=generate, summary="native: /generate"
    )
    yield RouteSpec(
        name="tokenize", target=f"{__name__}.native.tokenize:build", summary="native: /tokenize, /detokenize"
    )
    yield RouteSpec(
        name="parse", target=f"{__name__}.native.parse:build", summary="/parse_function_call, /separate_reasoning"
    )
    yield RouteSpec(name="score", target=f"{__name__}.native.score:build", summary="/v1/score")
    yield RouteSpec(name="abort", target=f"{__name__}.native.abort:build", summary="native: /abort_request")
    yield RouteSpec(name="loads", target=f"{__name__}.admin.loads:build", summary="/v1/loads and /load")
    yield RouteSpec(name="files", target=f"{__name__}.openai.files:build", summary="OpenAI: /v1/files")
    yield RouteSpec(name="batches", target=f"{__name__}.openai.batches:build", summary="OpenAI: /v1/batches")
    yield RouteSpec(name="health", target=f"{__name__}.admin.health:build", auth="public", summary="health probes")
    yield RouteSpec(name="info", target=f"{__name__}.admin.info:build", summary="/model_info, /server_info, /plugins")
    yield RouteSpec(
        name="metrics", target=f"{__name__}.admin.metrics:build", auth="public", summary="Prometheus: /metrics"
    )
    yield RouteSpec(name="admin", target=f"{__name__}.admin.admin:build", auth="admin", summary="/flush_cache")
    yield RouteSpec(
        name="experts",
        target=f"{__name__}.admin.experts:build",
        auth="admin",
        summary="/start_expert_distribution_record, …",
    )
    yield RouteSpec(
        name="weights", target=f"{__name__}.admin.weights:build", auth="admin", summary="/update_weights_from_disk"
    )
    yield RouteSpec(
        name="adapters",
        target=f"{__name__}.admin.adapters:build",
        auth="admin",
        summary="/load_lora_adapter, /unload_lora_adapter",
    )
    yield RouteSpec(name="docs", target=f"{__name__}.admin.docs:build", summary="/openapi.json")
