"""The built-in routes. Each group can be blocked: ``--block-plugin route:metrics``."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import RouteSpec, hookimpl
from sglang_plug.specs import Task


@hookimpl
def register_routes() -> Iterator[RouteSpec]:
    generate = frozenset[Task]({"generate"})
    yield RouteSpec(
        name="chat", target=f"{__name__}.chat:build", tasks=generate, summary="OpenAI: POST /v1/chat/completions"
    )
    yield RouteSpec(
        name="completions", target=f"{__name__}.completions:build", tasks=generate, summary="OpenAI: /v1/completions"
    )
    yield RouteSpec(
        name="responses", target=f"{__name__}.responses:build", tasks=generate, summary="OpenAI: /v1/responses"
    )
    yield RouteSpec(name="embeddings", target=f"{__name__}.embeddings:build", summary="OpenAI: /v1/embeddings")
    yield RouteSpec(name="encode", target=f"{__name__}.encode:build", summary="native: /encode")
    yield RouteSpec(name="classify", target=f"{__name__}.classify:build", summary="/classify and /v1/classify")
    yield RouteSpec(name="rerank", target=f"{__name__}.rerank:build", summary="/v1/rerank")
    yield RouteSpec(name="models", target=f"{__name__}.models:build", summary="OpenAI: /v1/models")
    yield RouteSpec(name="generate", target=f"{__name__}.generate:build", tasks=generate, summary="native: /generate")
    yield RouteSpec(name="tokenize", target=f"{__name__}.tokenize:build", summary="native: /tokenize, /detokenize")
    yield RouteSpec(name="parse", target=f"{__name__}.parse:build", summary="/parse_function_call, /separate_reasoning")
    yield RouteSpec(name="score", target=f"{__name__}.score:build", summary="/v1/score")
    yield RouteSpec(name="abort", target=f"{__name__}.abort:build", summary="native: /abort_request")
    yield RouteSpec(name="loads", target=f"{__name__}.loads:build", summary="/v1/loads and /load")
    yield RouteSpec(name="files", target=f"{__name__}.files:build", summary="OpenAI: /v1/files")
    yield RouteSpec(name="batches", target=f"{__name__}.batches:build", summary="OpenAI: /v1/batches")
    yield RouteSpec(name="health", target=f"{__name__}.health:build", auth="public", summary="/health and its kin")
    yield RouteSpec(name="info", target=f"{__name__}.info:build", summary="/model_info, /server_info, /plugins")
    yield RouteSpec(name="metrics", target=f"{__name__}.metrics:build", auth="public", summary="Prometheus: /metrics")
    yield RouteSpec(name="admin", target=f"{__name__}.admin:build", auth="admin", summary="/flush_cache")
    yield RouteSpec(
        name="experts", target=f"{__name__}.experts:build", auth="admin", summary="/start_expert_distribution_record, …"
    )
    yield RouteSpec(
        name="weights", target=f"{__name__}.weights:build", auth="admin", summary="/update_weights_from_disk"
    )
    yield RouteSpec(
        name="adapters",
        target=f"{__name__}.adapters:build",
        auth="admin",
        summary="/load_lora_adapter, /unload_lora_adapter",
    )
    yield RouteSpec(name="docs", target=f"{__name__}.docs:build", summary="/openapi.json and /docs")
