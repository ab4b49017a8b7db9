"""Every option of ``sglang-plug serve``: flag, configuration field, YAML key and environment variable in one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args

from sglang_plug.config import AUTO, NO_GRAMMARS, NO_QUANTIZATION, NO_SPECULATION
from sglang_plug.contracts.request import Task

from .adapter_options import ADAPTERS
from .http_options import HTTP
from .option import Group, Option, option
from .replica_options import REPLICAS
from .storage_options import STORAGE

TASKS = (AUTO, *get_args(Task))
DTYPES = (AUTO, "float32", "float", "bfloat16", "float16", "half")
KV_DTYPES = (AUTO, "bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2", "bf16")
"""The values that the engine maps to torch dtypes; this process refuses others without loading torch."""
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
MAX_SEED = 2**63 - 1

MODEL = Group(
    "model",
    (
        option("--model-path --model", "engine.model.path", "local folder or hub id", metavar="MODEL"),
        option("--revision", "engine.model.revision", "branch, tag or commit on the hub"),
        option("--task", "engine.model.task", "task to serve; auto is the task the model was made for", choices=TASKS),
        option("--is-embedding", None, "the same as --task embed: serve embeddings or scores", bool),
        option(
            "--checkpoint-format", "engine.model.checkpoint_format", "reader of the checkpoint", component="checkpoint"
        ),
        option(
            "--model-impl",
            "engine.model.impl",
            "where the model's code comes from: native (a plugin for its architecture), the name of a component that "
            "serves any architecture, or auto (native if there is such a plugin)",
        ),
        option("--load-format", "engine.model.load_format", "loader of the weights", component="weights"),
        option(
            "--dtype",
            "engine.model.dtype",
            "dtype of weights and arithmetic; auto is the checkpoint's, but float32 for float16 on a CPU",
            choices=DTYPES,
        ),
        option("--device", "engine.model.device", "auto, cpu, cuda or cuda:N"),
        option(
            "--context-length",
            "engine.model.context_length",
            "maximum number of tokens (prompt and output)",
            int,
            minimum=1,
        ),
        option(
            "--json-model-override-args",
            "engine.model.overrides",
            "JSON object that replaces fields of config.json",
            dict,
            metavar="JSON",
        ),
        option("--tokenizer-path", "engine.model.tokenizer_path", "folder, if not the model's"),
        option("--tokenizer-mode", "engine.model.tokenizer_mode", "tokenizer", component="tokenizer"),
        option(
            "--media-processor",
            "engine.model.media_processor",
            "processor of images in prompts, for multimodal models",
            component="media-processor",
        ),
        option("--skip-tokenizer-init", "skip_tokenizer_init", "serve token ids only", bool),
        option("--chat-template", "chat_template", "text or file of a Jinja template instead of the model's"),
        option("--served-model-name", "served_model_name", "name in /v1/models and answers"),
        option("--strict-model-name", "strict_model_name", "answer 404 to requests for another model", bool),
        option(
            "--weight-version", "weight_version", "label of the weights, reported by /model_info and in every meta_info"
        ),
    ),
)

MEMORY = Group(
    "memory and scheduling",
    (
        option(
            "--mem-fraction-static",
            "engine.cache.mem_fraction_static",
            "share of an accelerator's memory for weights, KV pool, the largest step and graphs together; on the host, "
            "the KV pool's share of what is free; default: 0.9 on an accelerator, 0.5 on the host",
            float,
            above=0,
            below=1,
        ),
        option("--max-total-tokens", "engine.cache.max_total_tokens", "KV slots in the pool", int, minimum=1),
        option(
            "--max-states",
            "engine.cache.max_states",
            "recurrent states in memory, of running sequences and of cached prefixes, in models that have them",
            int,
            minimum=1,
        ),
        option(
            "--kv-cache-dtype",
            "engine.cache.kv_dtype",
            "dtype of keys and values; auto is what the checkpoint says, else the model's dtype",
            choices=KV_DTYPES,
        ),
        option("--page-size", "engine.cache.page_size", "KV slots allocated together", int, minimum=1),
        option("--prefix-cache", "engine.cache.prefix_cache", "cache of computed prefixes", component="prefix-cache"),
        option("--disable-radix-cache", None, "the same as --prefix-cache none", bool),
        option(
            "--eviction-policy --radix-eviction-policy",
            "engine.cache.eviction_policy",
            "policy that chooses the unused prefix to evict first",
            component="eviction",
        ),
        option(
            "--kv-store",
            "engine.cache.kv_stores",
            "stores that keep computed prefixes outside of the KV pool, the fastest first",
            tuple,
            component="kv-store",
        ),
        option("--schedule-policy", "engine.schedule.policy", "order of the waiting queue", component="schedule"),
        option(
            "--chunked-prefill-size",
            "engine.schedule.chunked_prefill_size",
            "maximum number of new tokens in a step; 0: 8192 on an accelerator, 2048 on a CPU; -1: no chunking",
            int,
            minimum=-1,
        ),
        option(
            "--target-itl-ms",
            "engine.schedule.target_itl_ms",
            "milliseconds between two tokens of a sequence while prompts of others are computed; 0: no limit, -1: 4.75 "
            "decode steps, and at least 50 ms",
            float,
            minimum=-1,
        ),
        option(
            "--max-running-requests",
            "engine.schedule.max_running_requests",
            "maximum number of sequences computed together; default: 256 on an accelerator, 128 on a CPU",
            int,
            minimum=1,
        ),
        option(
            "--max-queued-requests",
            "engine.schedule.max_queued_requests",
            "maximum number of sequences waiting; one more is refused with status 503",
            int,
            minimum=1,
        ),
        option(
            "--max-running-per-caller",
            "engine.schedule.max_running_per_caller",
            "maximum number of sequences of one caller computed together",
            int,
            minimum=1,
        ),
        option(
            "--max-queued-per-caller",
            "engine.schedule.max_queued_per_caller",
            "maximum number of sequences of one caller waiting; one more is refused with status 429",
            int,
            minimum=1,
        ),
        option(
            "--watchdog-timeout",
            "engine.schedule.watchdog_timeout",
            "seconds a step may take before the engine exits",
            float,
            above=0,
        ),
        option(
            "--disable-overlap-schedule --disable-overlap",
            "engine.schedule.disable_overlap_schedule",
            "on an accelerator, plan a step only after the previous one has ended",
            bool,
        ),
    ),
)

BACKENDS = Group(
    "backends",
    (
        option(
            "--tp-size --tensor-parallel-size --tp",
            "engine.parallel.tp_size",
            "ranks that share the model, each on a device of its own, or on some of a CPU's cores",
            int,
            minimum=1,
        ),
        option(
            "--executor",
            "engine.parallel.executor",
            "executor that starts the ranks of the model",
            component="executor",
        ),
        option("--attention-backend", "engine.backends.attention", "attention backend", component="attention"),
        option("--kernels", "engine.backends.kernels", "set of kernels", component="kernels"),
        option(
            "--quantization",
            "engine.backends.quantization",
            "quantization of matrices; auto takes the checkpoint's, none the model's dtype",
            component="quantization",
            others=(NO_QUANTIZATION,),
        ),
        option(
            "--grammar-backend",
            "engine.backends.grammar",
            "backend of structured outputs; none refuses them",
            component="grammar",
            others=(NO_GRAMMARS,),
        ),
        option(
            "--grammar-timeout",
            "engine.backends.grammar_timeout",
            "seconds of CPU time that compiling one grammar may take",
            float,
            above=0,
        ),
        option(
            "--disable-jump-forward",
            "engine.backends.disable_jump_forward",
            "compute tokens one by one even where a constraint leaves no choice",
            bool,
        ),
        option(
            "--disable-cuda-graph",
            "engine.backends.disable_cuda_graph",
            "run decode steps operation by operation instead of as CUDA graphs or, on a CPU, as recorded graphs",
            bool,
        ),
        option(
            "--cuda-graph-max-bs",
            "engine.backends.cuda_graph_max_bs",
            "maximum number of sequences of a decode step that is captured as a CUDA graph, or recorded on a CPU",
            int,
            minimum=1,
        ),
        option(
            "--piecewise-cuda-graph-max-tokens",
            "engine.backends.piecewise_cuda_graph_max_tokens",
            "maximum number of tokens of a step with prompts that is captured as piecewise CUDA graphs; 0: never",
            int,
            minimum=0,
        ),
        option(
            "--speculative-algorithm",
            "engine.speculative.algorithm",
            "drafter that predicts how outputs continue, so that a step computes several tokens; outputs stay the same "
            "(auto: the drafter that plugins recommend for the device)",
            component="drafter",
            others=(NO_SPECULATION, AUTO),
        ),
        option(
            "--speculative-num-draft-tokens",
            "engine.speculative.num_draft_tokens",
            "maximum number of draft tokens for one sequence in a step",
            int,
            minimum=1,
        ),
        option(
            "--speculative-step-tokens",
            "engine.speculative.step_tokens",
            "maximum number of tokens of a step with draft tokens; 0: 64 on an accelerator, 16 on a CPU",
            int,
            minimum=0,
        ),
        option(
            "--random-seed",
            "engine.random_seed",
            "seed of sampling and random weights",
            int,
            minimum=0,
            maximum=MAX_SEED,
        ),
    ),
)

OBSERVABILITY = Group(
    "logs and metrics",
    (
        option("--log-level", "engine.log_level", "least severe message shown", choices=LOG_LEVELS),
        option(
            "--decode-log-interval",
            "engine.schedule.log_interval",
            "decode steps between two progress lines",
            int,
            minimum=1,
        ),
        option("--log-requests", "log_requests", "log every request", bool),
        option("--enable-cache-report", "enable_cache_report", "report cached prompt tokens in usage", bool),
        option("--enable-metrics", None, "accepted for compatibility: metrics are always on", bool),
        option(
            "--observer",
            "observers",
            "also load an observer that is not enabled by default (from a plugin); repeatable",
            tuple,
            component="observer",
        ),
        option(
            "--expert-distribution-recorder-mode",
            "expert_distribution_recorder_mode",
            "let /start_expert_distribution_record count the experts that tokens choose, or keep every choice",
            choices=("stat", "per_token"),
        ),
        option("--expert-distribution-dir", "expert_distribution_dir", "folder for /dump_expert_distribution_record"),
    ),
)

GROUPS = (MODEL, HTTP, MEMORY, BACKENDS, REPLICAS, ADAPTERS, OBSERVABILITY, STORAGE)


def options() -> Iterator[Option]:
    """Yield every option, in the order of ``--help``."""
    for group in GROUPS:
        yield from group.options


def by_key() -> Mapping[str, Option]:
    """Map every accepted YAML key to its option."""
    return {key: option for option in options() for key in option.keys}
