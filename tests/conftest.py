"""Tiny random models of every family, made once, and engines to serve them."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    FalconConfig,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    Glm4Config,
    Glm4MoeConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    JambaConfig,
    KimiLinearConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    Llama4TextConfig,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    MiniMaxConfig,
    MistralConfig,
    MixtralConfig,
    NemotronHConfig,
    Olmo2Config,
    OlmoHybridConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    StableLmConfig,
    Starcoder2Config,
)

from sglang_plug import EngineClient, EngineConfig, Output, Plugins, Request
from sglang_plug.clients.thread_client import ThreadClient
from sglang_plug.engine import loop
from sglang_plug_backends.structured_outputs import build

from .compiling import CompilerHere
from .interpreted_process import InterpretedProcess, is_interpreted, triton_is_interpreted
from .reaper import Reaper
from .surroundings import forget_the_callers_options, seed

# Triton decides when it is imported whether kernels are compiled. Here they are; see ``interpreted_process``.
os.environ.setdefault("TRITON_INTERPRET", "0")

# How long an example takes depends on the load of the machine. The examples are the same each time, but not in
# ``make fuzz``.
without_deadline: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", **without_deadline, derandomize=True, database=None)
settings.register_profile("random", **without_deadline, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

REAPER = pytest.StashKey[Reaper]()
INTERPRETED = pytest.StashKey[InterpretedProcess]()
COLLECT_ALL = loop._collect_all


def pytest_configure(config: pytest.Config) -> None:
    """Before anything is collected."""
    forget_the_callers_options()
    config.stash[REAPER] = Reaper()
    config.stash[INTERPRETED] = InterpretedProcess()


def pytest_unconfigure(config: pytest.Config) -> None:
    """After everything."""
    config.stash[INTERPRETED].close()
    config.stash[REAPER].close()
    gc.unfreeze()  # libraries that count what is left at the end find nothing


WHOLE_ENGINE = frozenset({"serve", "tiny_model", "app", "apps", "vision_model", "vision_server"})
"""Fixtures that serve a model, or make one of a family."""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark the tests that ``make test-quick`` leaves out because of what they serve."""
    for item in items:
        if not WHOLE_ENGINE.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("whole_engine")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Libraries and tests stay to the end: the garbage collector, which would look through them again and again and
    take longer than many tests, does not while they are made, and never again after that."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test whose kernels are interpreted elsewhere, if those of this process are compiled."""
    if not is_interpreted(item) or triton_is_interpreted():
        return None
    following = nextitem if nextitem is not None and is_interpreted(nextitem) else None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in item.config.stash[INTERPRETED].run(item, following):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of a test, of whatever scope."""
    seed()


VOCABULARY = 512
SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # wide enough for outputs that differ from one prompt to the next
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


LATENT: dict[str, Any] = {
    **SHARED,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 16,
    "n_shared_experts": 2,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 40.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
}


DELTA: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
"""Gated DeltaNets, and attention in every fourth layer."""


MAMBA2: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_n_groups": 1}


def families() -> dict[str, PretrainedConfig]:
    """The shapes of real models, every feature kept, widths scaled down."""
    return {
        "llama-3.2-1b": LlamaConfig(
            **SHARED,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=16,
            tie_word_embeddings=True,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
        "qwen2.5-0.5b": Qwen2Config(
            **SHARED,
            num_attention_heads=14,
            num_key_value_heads=2,
            head_dim=8,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        "qwen3-0.6b": Qwen3Config(
            **SHARED,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        "mistral-7b": MistralConfig(
            **SHARED,
            num_attention_heads=8,
            num_key_value_heads=2,
            sliding_window=24,
            tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
        "qwen1.5-moe": Qwen2MoeConfig(
            **SHARED,
            num_attention_heads=4,
            num_key_value_heads=4,
            num_experts=12,
            num_experts_per_tok=4,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=48,
            norm_topk_prob=False,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        "qwen3-moe": Qwen3MoeConfig(
            **SHARED,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            mlp_only_layers=[0],
            norm_topk_prob=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        "qwen3-next": Qwen3NextConfig(
            **{**SHARED, "num_hidden_layers": 4},
            **DELTA,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=32,
        ),
        "qwen3.5": Qwen3_5TextConfig(**{**SHARED, "num_hidden_layers": 4}, **DELTA, tie_word_embeddings=True),
        "granite-4-tiny": GraniteMoeHybridConfig(
            **{**SHARED, **MAMBA2, "num_hidden_layers": 4},
            num_attention_heads=8,
            num_key_value_heads=2,
            layer_types=["mamba", "mamba", "attention", "mamba"],
            num_local_experts=8,
            num_experts_per_tok=3,
            shared_intermediate_size=48,
            attention_multiplier=0.2,
            embedding_multiplier=3.0,
            residual_multiplier=0.5,
            logits_scaling=2.0,
        ),
        "nemotron-3-nano": NemotronHConfig(
            **{name: value for name, value in SHARED.items() if name != "num_hidden_layers"},
            hybrid_override_pattern="MEM*EM-",
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            mamba_num_heads=8,
            mamba_head_dim=16,
            ssm_state_size=16,
            n_groups=2,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            moe_shared_expert_intermediate_size=32,
        ),
        "falcon-h1": FalconH1Config(
            **SHARED, **MAMBA2, num_attention_heads=4, num_key_value_heads=2, mamba_d_ssm=96, key_multiplier=0.5
        ),
        "jamba": JambaConfig(
            **SHARED,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_experts=4,
            attn_layer_period=3,
            attn_layer_offset=1,
        ),
        "kimi-linear": KimiLinearConfig(
            **{**SHARED, "num_hidden_layers": 4},
            num_attention_heads=4,
            num_key_value_heads=4,
            kv_lora_rank=32,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=16,
            moe_intermediate_size=24,
            num_experts=8,
            num_experts_per_token=3,
            linear_head_dim=16,
            linear_num_heads=4,
            layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        ),
        "minimax-text-01": MiniMaxConfig(
            **{**SHARED, "num_hidden_layers": 4}, num_attention_heads=4, num_key_value_heads=2, num_local_experts=4
        ),
        "olmo-hybrid": OlmoHybridConfig(
            **{**SHARED, "num_hidden_layers": 4},
            num_attention_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,  # transformers saves three convolutions of one width
        ),
        "recurrent-gemma-2b": RecurrentGemmaConfig(
            **SHARED, num_attention_heads=4, num_key_value_heads=1, attention_window_size=24
        ),
        "lfm2-1.2b": Lfm2Config(
            **{**SHARED, "num_hidden_layers": 4},
            num_attention_heads=4,
            num_key_value_heads=2,
            block_multiple_of=16,
            layer_types=["conv", "conv", "full_attention", "conv"],
        ),
        "lfm2-8b-a1b": Lfm2MoeConfig(
            **{**SHARED, "num_hidden_layers": 4},
            num_attention_heads=4,
            num_key_value_heads=2,
            moe_intermediate_size=24,
            num_dense_layers=1,
            num_experts=8,
            num_experts_per_tok=3,
            layer_types=["conv", "full_attention", "conv", "conv"],
        ),
        "mamba-130m": MambaConfig(**SHARED, state_size=8),
        "mamba-2-130m": Mamba2Config(**SHARED, state_size=16, num_heads=8, head_dim=16, n_groups=1),
        "mixtral-8x7b": MixtralConfig(
            **SHARED,
            num_attention_heads=8,
            num_key_value_heads=2,
            num_local_experts=8,
            num_experts_per_tok=2,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        "deepseek-v2-lite": DeepseekV2Config(**LATENT, q_lora_rank=None),
        "deepseek-v2": DeepseekV2Config(
            **LATENT,
            q_lora_rank=24,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            routed_scaling_factor=16.0,
        ),
        "deepseek-v3": DeepseekV3Config(**LATENT, q_lora_rank=24, n_group=4, topk_group=2),
        "gemma-2-2b": Gemma2Config(
            **SHARED,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=24,
        ),
        "gemma-3-1b": Gemma3TextConfig(
            **{**SHARED, "num_hidden_layers": 4},
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=24,
            sliding_window_pattern=3,
        ),
        "phi-3-mini": Phi3Config(**SHARED, num_attention_heads=4, sliding_window=40),
        "phi-4-mini": Phi3Config(
            **SHARED,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            partial_rotary_factor=0.75,
            original_max_position_embeddings=512,
            rope_scaling={
                "type": "longrope",
                "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.4],
                "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
            },
        ),
        "olmo-2-1b": Olmo2Config(**SHARED, num_attention_heads=8, num_key_value_heads=4),
        "gpt2": GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=64,
            n_layer=3,
            n_head=4,
            n_positions=512,
            initializer_range=0.2,
            bos_token_id=1,
            eos_token_id=2,
        ),
        "starcoder2-3b": Starcoder2Config(**SHARED, num_attention_heads=8, num_key_value_heads=2, sliding_window=24),
        "falcon-7b": FalconConfig(**SHARED, num_attention_heads=8, ffn_hidden_size=96),
        "bloom-560m": BloomConfig(
            vocab_size=VOCABULARY, hidden_size=64, n_layer=3, n_head=8, initializer_range=0.2, pad_token_id=0
        ),
        "gpt-j-6b": GPTJConfig(
            vocab_size=VOCABULARY,
            n_embd=64,
            n_layer=3,
            n_head=4,
            n_positions=512,
            rotary_dim=8,
            initializer_range=0.2,
            bos_token_id=1,
            eos_token_id=2,
        ),
        "gpt-neo-125m": GPTNeoConfig(
            **{name: value for name, value in SHARED.items() if name != "num_hidden_layers"},
            num_layers=4,
            num_heads=4,
            attention_types=[[["global", "local"], 2]],
            window_size=24,
        ),
        "granite-3-2b": GraniteConfig(
            **SHARED,
            num_attention_heads=8,
            num_key_value_heads=2,
            attention_multiplier=0.2,
            embedding_multiplier=3.0,
            residual_multiplier=0.5,
            logits_scaling=2.0,
        ),
        "command-r": CohereConfig(**SHARED, num_attention_heads=8, num_key_value_heads=2, use_qk_norm=True),
        "stablelm-2": StableLmConfig(**SHARED, num_attention_heads=8, num_key_value_heads=2, use_qkv_bias=True),
        "gpt-oss-20b": GptOssConfig(
            **SHARED,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=8,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=24,
        ),
        "glm-4-9b": Glm4Config(
            **SHARED, num_attention_heads=4, num_key_value_heads=2, head_dim=16, attention_bias=True
        ),
        "glm-4.5-air": Glm4MoeConfig(
            **SHARED,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            attention_bias=True,
            use_qk_norm=True,
            moe_intermediate_size=24,
            n_routed_experts=8,
            num_experts_per_tok=3,
        ),
        "llama-4-scout": Llama4TextConfig(
            **{**SHARED, "num_hidden_layers": 4, "intermediate_size": 24},
            intermediate_size_mlp=96,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            num_local_experts=4,
            attention_chunk_size=24,
            floor_scale=16,
        ),
        "gemma-4-e2b": Gemma4TextConfig(
            **{**SHARED, "num_hidden_layers": 4},
            num_attention_heads=4,
            num_key_value_heads=2,
            num_global_key_value_heads=1,
            head_dim=16,
            global_head_dim=32,
            hidden_size_per_layer_input=16,
            vocab_size_per_layer_input=VOCABULARY,
            num_kv_shared_layers=2,
            sliding_window=24,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
    }


class TinyModel:
    """A random checkpoint on disk, and transformers' model of it."""

    def __init__(self, path: Path, reference: PreTrainedModel) -> None:
        self.path, self.reference = path, reference
        self._logits = functools.lru_cache(maxsize=32)(self._forward)

    @torch.inference_mode()
    def greedy(self, tokens: Sequence[int], count: int, guess: Sequence[int] = ()) -> list[int]:
        """Transformers' greedy continuation, without a cache.

        If ``guess`` is that continuation, one pass shows it: each of its tokens is the likeliest after those before.
        """
        if len(guess) == count:
            logits = self._logits((*tokens, *guess))[len(tokens) - 1 : -1]
            if logits.argmax(-1).tolist() == list(guess):
                return list(guess)
        row = list(tokens)
        for _ in range(count):
            row.append(int(self._forward(tuple(row))[-1].argmax()))
        return row[len(tokens) :]

    @torch.inference_mode()
    def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """Log-probability of each token but the first."""
        logits = self._logits(tuple(tokens))[:-1]
        chosen = torch.tensor(tokens[1:])[:, None]
        return logits.log_softmax(-1).gather(1, chosen)[:, 0].tolist()

    @torch.inference_mode()
    def ranks(self, tokens: Sequence[int], tolerance: float = 1e-4) -> list[range]:
        """The ranks that each token but the first may have if log-probabilities are off by half the tolerance."""
        logprobs = self._logits(tuple(tokens))[:-1].log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(tokens[1:])[:, None])
        least = (logprobs > chosen + tolerance).sum(-1) + 1
        most = (logprobs >= chosen - tolerance).sum(-1)
        return [range(low, high + 1) for low, high in zip(least.tolist(), most.tolist(), strict=True)]

    def _forward(self, tokens: tuple[int, ...]) -> torch.Tensor:
        return self.reference(torch.tensor([tokens])).logits[0]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """``tiny_model(family)``: made on first use."""

    @functools.cache
    def make(family: str) -> TinyModel:
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(families()[family], attn_implementation="eager").float().eval()
        path = tmp_path_factory.mktemp(family)
        model.save_pretrained(path)
        return TinyModel(path, model)

    return make


class Served:
    """An engine, driven from a test without a running event loop."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.runner = asyncio.Runner()
        try:
            self.info = dict(self.runner.run(client.start()))
        except BaseException:
            self.runner.close()
            raise

    def outputs(self, requests: Sequence[Request]) -> list[Output]:
        """Serve all at once; one merged output for each. Raises the first error."""
        outcomes: list[Any] = self.outcomes(requests)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    def outcomes(self, requests: Sequence[Request]) -> list[Output | BaseException]:
        """The same, with each request's error in its place."""

        async def outcome_of(request: Request) -> Output:
            from sglang_plug.clients.pending import merge

            whole: Output | None = None
            async for output in self.client.submit(request):
                whole = output if whole is None else merge(whole, output)
            assert whole is not None
            return whole

        async def every() -> list[Output | BaseException]:
            return await asyncio.gather(*map(outcome_of, requests), return_exceptions=True)

        return self.runner.run(every())

    def control(self, name: str, **arguments: Any) -> Any:
        """A control call."""
        return self.runner.run(self.client.control(name, **arguments))

    def close(self) -> None:
        """Stop the engine."""
        self.runner.run(self.client.close())
        self.runner.close()


@pytest.fixture(scope="session", autouse=True)
def engines_of_this_process() -> Iterator[None]:
    """Engines of this process leave alone what was frozen after the collection, and compile grammars here.

    The process that servers have for grammars takes seconds to start, and has tests of its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_collect_all", gc.collect)
        patch.setattr(build, "BackendCompiler", CompilerHere)
        yield


@pytest.fixture
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The garbage collector looks at everything, as in a process that has told it nothing."""
    monkeypatch.setattr(loop, "_collect_all", COLLECT_ALL)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(scope="session")
def installed_plugins() -> Plugins:
    """The plugins of an engine whose configuration says nothing of them; to find them takes as long as many tests."""
    return Plugins.discover()


@pytest.fixture
def serve(installed_plugins: Plugins) -> Iterator[Callable[..., Served]]:
    """``serve(config)``: an engine in a thread (or another client class), closed after the test."""
    engines: list[Served] = []

    def start(config: EngineConfig, client: Callable[[EngineConfig, Plugins], EngineClient] = ThreadClient) -> Served:
        is_plain = config.plugins == installed_plugins.options
        plugins = installed_plugins.separate() if is_plain else Plugins.discover(config.plugins)
        engines.append(Served(client(config, plugins)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
