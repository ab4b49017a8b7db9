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
    yield RouteSpec(name="models", target=f"{__name__}.models:build", summary="OpenAI: /v1/models")
    yield RouteSpec(name="generate", target=f"{__name__}.generate:build", tasks=generate, summary="native: /generate")
    yield RouteSpec(name="health", target=f"{__name__}.health:build", auth="public", summary="/health and its kin")
    yield RouteSpec(name="info", target=f"{__name__}.info:build", summary="/model_info, /server_info, /plugins")
    yield RouteSpec(name="metrics", target=f"{__name__}.metrics:build", auth="public", summary="Prometheus: /metrics")
    yield RouteSpec(name="admin", target=f"{__name__}.admin:build", auth="admin", summary="/flush_cache")
    yield RouteSpec(name="docs", target=f"{__name__}.docs:build", summary="/openapi.json and /docs")
