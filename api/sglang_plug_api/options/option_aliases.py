"""Hints for options of other servers: which option to use here instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

ONE_DEVICE = (
    "one model must fit on one machine, whose devices share it by --tp-size; --replicas may run on several machines "
    "with --deployment ray"
)
SPECULATION = (
    "use --speculative-algorithm (drafters are plugins; no draft model is loaded) and --set for their settings"
)
NO_LORA_OPTION = "no option for it: adapters of any rank, for any matrix of the layers, are taken; see --lora-paths"
NO_TLS = "TLS is not offered; put a reverse proxy in front"
SPLIT = (
    "use --prefill-replicas (one server has engines that compute prompts and others that generate), or --role (servers "
    "of their own)"
)
NO_OFFLOAD = "weights stay on the device; nothing of them is moved to other memory"
KV_STORES = "use --kv-store host,disk (computed prefixes are also kept in the memory of the host and on disk)"
NO_FOREIGN_CODE = "code that comes with a checkpoint or a request is never run; models are plugins"
NO_COMPILER = "models are not compiled; decode steps are captured as graphs automatically"
NO_TRACES = "install the plugin sglang-plug-otel and use --observer otel"
IMAGES = "use --max-images-per-request, --max-image-tokens, --max-image-bytes and --max-image-pixels"
NO_MEDIA_OPTIONS = "no option for it; a vision-language model names its media processor"
GRAPHS = "use --cuda-graph-max-bs; which sizes are captured follows from it"
NO_REQUEST_LIMIT = "no option for it; there is a fixed limit"
ON_ALREADY = "it is on by default"
METRICS = "metrics are always on, with fixed buckets; see /metrics"
PRIORITIES = "use --schedule-policy priority (a higher priority is earlier)"
OVERLAP = f"{ON_ALREADY} on accelerators; --disable-overlap-schedule switches it off"


def use(flag: str, note: str = "") -> str:
    """Return the hint for an option that is called ``flag`` here."""
    return f"use {flag}" + (f" ({note})" if note else "")


EXACT: Mapping[str, str] = MappingProxyType(
    {
        "pp": ONE_DEVICE,
        "ep": ONE_DEVICE,
        "pp-size": ONE_DEVICE,
        "nnodes": ONE_DEVICE,
        "node-rank": ONE_DEVICE,
        "max-model-len": use("--context-length"),
        "gpu-memory-utilization": use("--mem-fraction-static"),
        "max-num-seqs": use("--max-running-requests"),
        "max-num-batched-tokens": use("--chunked-prefill-size"),
        "max-prefill-tokens": use("--chunked-prefill-size"),
        "chunked-prefill": use("--chunked-prefill-size"),
        "enable-chunked-prefill": f"{ON_ALREADY}; see --chunked-prefill-size",
        "enable-mixed-chunk": ON_ALREADY,
        "enable-prefix-caching": f"{ON_ALREADY}; --disable-radix-cache switches it off",
        "disable-prefix-caching": use("--disable-radix-cache"),
        "async-scheduling": OVERLAP,
        "enable-overlap-schedule": OVERLAP,
        "tokenizer": use("--tokenizer-path"),
        "tokenizer-revision": use("--tokenizer-path", "a folder"),
        "seed": use("--random-seed"),
        "block-size": use("--page-size"),
        "hf-overrides": use("--json-model-override-args"),
        "rope-scaling": use("--json-model-override-args"),
        "rope-theta": use("--json-model-override-args"),
        "enforce-eager": use("--disable-cuda-graph"),
        "cuda-graph-bs": GRAPHS,
        "guided-decoding-backend": use("--grammar-backend"),
        "structured-outputs-config": use("--grammar-backend", "and --set for settings of backends"),
        "scheduling-policy": use("--schedule-policy"),
        "enable-auto-tool-choice": f"{ON_ALREADY} where there is a --tool-call-parser",
        "enable-reasoning": use("--reasoning-parser"),
        "enable-prompt-tokens-details": use("--enable-cache-report"),
        "enable-log-requests": use("--log-requests"),
        "disable-log-requests": "requests are not logged unless --log-requests is given",
        "disable-log-stats": use("--decode-log-interval"),
        "uvicorn-log-level": use("--log-level"),
        "log-level-http": use("--log-level"),
        "runner": use("--task"),
        "convert": use("--task"),
        "download-dir": "set HF_HOME in the environment instead",
        "swap-space": KV_STORES,
        "cpu-offload-gb": NO_OFFLOAD,
        "num-gpu-blocks-override": use("--max-total-tokens"),
        "kv-cache-memory-bytes": use("--max-total-tokens"),
        "max-mamba-cache-size": use("--max-states"),
        "mamba-full-memory-ratio": use("--max-states"),
        "mamba-ssm-dtype": "no option for it; states are kept as the model computes them, in float32",
        "mamba-cache-dtype": "no option for it; states are kept as the model computes them, in float32",
        "schedule-conservativeness": "no option for it; requests that do not fit into memory wait",
        "generation-config": use("--sampling-defaults"),
        "override-generation-config": use("--preferred-sampling-params"),
        "max-logprobs": NO_REQUEST_LIMIT,
        "stream-interval": "no option for it; tokens are sent as they come",
        "allowed-origins": use("--allow-origins"),
        "trust-remote-code": NO_FOREIGN_CODE,
        "enable-custom-logit-processor": NO_FOREIGN_CODE,
        "logits-processors": NO_FOREIGN_CODE,
        "trust-request-chat-template": "templates of requests are not rendered; use --chat-template",
        "chat-template-content-format": "no option for it; what the template reads is found out",
        "sampling-backend": use("--kernels"),
        "prefill-attention-backend": use("--attention-backend"),
        "decode-attention-backend": use("--attention-backend"),
        "base-gpu-id": use("--device cuda:N"),
        "gpu-id-step": ONE_DEVICE,
        "enable-torch-compile": NO_COMPILER,
        "compilation-config": NO_COMPILER,
        "limit-mm-per-prompt": IMAGES,
        "limit-mm-data-per-request": IMAGES,
        "enable-multimodal": f"{ON_ALREADY} for vision-language models",
        "enable-trace": NO_TRACES,
        "fp8-gemm-backend": use("--kernels"),
        "enable-response-store": use("--max-stored-responses", "on by default"),
        "disable-fastapi-docs": "use --block-plugin playground (the pages, /docs included) and --block-plugin "
        "route:docs (/openapi.json)",
        "enable-deterministic-inference": "no option for it; seeds of requests are always honored",
        "max-seq-len-to-capture": GRAPHS,
        "disable-cuda-graph-padding": GRAPHS,
        "enable-piecewise-cuda-graph": use("--piecewise-cuda-graph-max-tokens"),
        "enable-priority-scheduling": PRIORITIES,
        "schedule-low-priority-values-first": PRIORITIES,
        "priority-scheduling-preemption-threshold": PRIORITIES,
        "abort-on-priority-when-disabled": PRIORITIES,
        "soft-watchdog-timeout": use("--watchdog-timeout"),
        "log-requests-level": use("--log-requests"),
        "log-requests-format": use("--log-requests"),
        "fp8-gemm-runner-backend": use("--kernels"),
        "kv-events-config": "install the plugin sglang-plug-kv-events",
        "quantization-param-path": "scales of the KV pool are read from the checkpoint",
        "allow-auto-truncate": "no option for it; requests may set truncate_prompt_tokens",
        "stream-output": "no option for it; requests of /generate may set incremental",
        "show-time-cost": METRICS,
        "collect-tokens-histogram": METRICS,
        "generation-tokens-buckets": METRICS,
        "prompt-tokens-buckets": METRICS,
        "enable-metrics-for-all-schedulers": METRICS,
        "enable-request-time-stats-logging": METRICS,
        "enable-expert-distribution-metrics": use("--expert-distribution-recorder-mode"),
        "expert-distribution-recorder-buffer-size": use("--expert-distribution-recorder-mode"),
        "enable-return-hidden-states": "hidden states are not reported",
        "enable-return-routed-experts": use(
            "--expert-distribution-recorder-mode", "of single requests they are not reported"
        ),
        "enable-ep-moe": ONE_DEVICE,
        "torchao-config": use("--quantization"),
        "quantize-and-serve": use("--quantization"),
        "custom-weight-loader": use("--load-format", "loaders are plugins"),
        "model-loader-extra-config": use("--load-format", "and --set for settings of loaders"),
    }
)
"""Maps an option's name without leading dashes to its hint."""

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "pipeline-parallel": ONE_DEVICE,
        "data-parallel": ONE_DEVICE,
        "expert-parallel": ONE_DEVICE,
        "enable-expert-parallel": ONE_DEVICE,
        "enable-dp": ONE_DEVICE,
        "enable-eplb": ONE_DEVICE,
        "dp-": ONE_DEVICE,
        "pp-": ONE_DEVICE,
        "deepep": ONE_DEVICE,
        "ep-": ONE_DEVICE,
        "eplb-": ONE_DEVICE,
        "dist": ONE_DEVICE,
        "nccl": ONE_DEVICE,
        "disable-custom-all-reduce": ONE_DEVICE,
        "moe-": "no option for it; see --kernels",
        "speculative": SPECULATION,
        "spec-": SPECULATION,
        "enable-lora": NO_LORA_OPTION,
        "lora": NO_LORA_OPTION,
        "max-lora": NO_LORA_OPTION,
        "disaggregation": SPLIT,
        "kv-transfer": SPLIT,
        "hicache": KV_STORES,
        "enable-hierarchical-cache": KV_STORES,
        "enable-lmcache": KV_STORES,
        "enable-memory-saver": NO_OFFLOAD,
        "enable-sleep-mode": NO_OFFLOAD,
        "offload": NO_OFFLOAD,
        "torch-compile": NO_COMPILER,
        "cudagraph": GRAPHS,
        "piecewise-cuda-graph": use("--piecewise-cuda-graph-max-tokens"),
        "bucket-": METRICS,
        "modelopt": use("--quantization"),
        "mm-": NO_MEDIA_OPTIONS,
        "otlp": NO_TRACES,
        "ssl": NO_TLS,
        "constrained-json": "blanks in JSON are bounded already; see --set for settings of grammar backends",
    }
)
"""Maps a prefix of option names to the hint for all of them."""


MIN_ABBREVIATION = 4
"""Shortest beginning of a name, without its dashes, that counts as an abbreviation."""


def alias_hint(name: str, known: Iterable[str] = ()) -> str | None:
    """Return the hint for an option of another server, given as a flag or a YAML key; ``None`` if it is unknown.

    Args:
        name: the option, or an abbreviation that stands for one option of other servers and for none of ``known``.
        known: options of this server.
    """
    plain = _plain(name)
    for candidate in (plain, plain.removeprefix("no-")):
        if candidate in EXACT:
            return EXACT[candidate]
        for prefix, hint in FAMILIES.items():
            if candidate.startswith(prefix):
                return hint
    if len(plain) < MIN_ABBREVIATION or any(_plain(option).startswith(plain) for option in known):
        return None
    matches = [(full, hint) for full, hint in (*EXACT.items(), *FAMILIES.items()) if full.startswith(plain)]
    return f"for --{matches[0][0]}, {matches[0][1]}" if len(matches) == 1 else None


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()
