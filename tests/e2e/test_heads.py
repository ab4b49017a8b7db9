"""Embeddings and scores equal transformers' on the same weights: ragged batches, chunks, cold and warm cache."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel

from sglang_plug import EngineConfig, Output, Request, SamplingParams
from sglang_plug.config import AUTO, CacheOptions, ModelOptions, ParallelOptions, ScheduleOptions
from sglang_plug.contracts.request import Task

SEPARATOR = 3
LENGTHS = (1, 2, 17, 33, 90)
TOLERANCE = {"abs": 1e-5, "rel": 1e-5}
SHARED: dict[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
DECODER = {**SHARED, "num_key_value_heads": 2, "tie_word_embeddings": False}


def prompts() -> list[list[int]]:
    """Return prompts of mixed lengths, of which the later ones share a long prefix."""
    draw = random.Random(4)
    own = [[draw.randrange(5, 200) for _ in range(length)] for length in LENGTHS]
    return [*own, own[-1][:70] + own[2], own[-1][:80]]


def pairs() -> list[list[int]]:
    """Return texts and pairs of texts as a tokenizer encodes them: with a separator after each text."""
    texts = prompts()
    joined = [[4, *first[:40], SEPARATOR, *second[:40], SEPARATOR] for first, second in pairwise(texts)]
    return [*joined, *[[4, *text, SEPARATOR] for text in texts]]


def build(architecture: str, config: PretrainedConfig) -> PreTrainedModel:
    """Return a model with random weights that are large enough for every part to affect the result."""
    torch.manual_seed(11)
    model = getattr(transformers, architecture)(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            else:
                parameter.normal_(std=0.2).add_(0.0 if name.endswith("bias") else 1.0)
    return model


def options(path: Path, *, task: str = AUTO, chunk: int = 8192, pool: int = 4096, ranks: int = 1) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu", dtype="float32", task=task),
        cache=CacheOptions(max_total_tokens=pool),
        schedule=ScheduleOptions(chunked_prefill_size=chunk, max_running_requests=16),
        parallel=ParallelOptions(tp_size=ranks, executor="threads"),
    )


def ask(engine: Any, tokens: list[list[int]], task: Task) -> list[Output]:
    requests = [
        Request(id=f"{task}{index}", tokens=tuple(prompt), params=SamplingParams(max_new_tokens=0), task=task)
        for index, prompt in enumerate(tokens)
    ]
    outputs: list[Output] = engine.outputs(requests)
    assert [output.finish.reason for output in outputs if output.finish] == ["stop"] * len(tokens), outputs
    return outputs


def agree(outputs: list[Output], expected: list[Tensor]) -> None:
    for output, vector in zip(outputs, expected, strict=True):
        assert list(output.values) == pytest.approx(vector.tolist(), **TOLERANCE)


def pool_sentence(folder: Path, mode: str, normalize: bool) -> None:
    """Write the files in which sentence-transformers configures the pooling."""
    kinds = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), *[("Normalize", "2_Normalize")] * normalize]
    (folder / "modules.json").write_text(
        json.dumps([{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in modules])
    )
    (folder / "1_Pooling").mkdir()
    chosen = {f"pooling_mode_{name}": key == mode for key, name in kinds.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **chosen}))


@torch.inference_mode()
def states(model: nn.Module, tokens: list[int]) -> Tensor:
    """Return the last hidden states of the model body, ``[T, hidden]``."""
    return model(input_ids=torch.tensor([tokens])).last_hidden_state[0]


POOL: Mapping[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda x: x[0],
    "mean": lambda x: x.mean(0),
    "last": lambda x: x[-1],
}
ENCODERS: Mapping[str, tuple[str, PretrainedConfig]] = {
    "bert": ("BertModel", transformers.BertConfig(**SHARED)),
    "bert-tanh-gelu": (
        "BertModel",
        transformers.BertConfig(**{**SHARED, "hidden_act": "gelu_new"}, layer_norm_eps=1e-5),
    ),
    "roberta": ("RobertaModel", transformers.RobertaConfig(**{**SHARED, "pad_token_id": 1}, type_vocab_size=1)),
    "xlm-roberta": ("XLMRobertaModel", transformers.XLMRobertaConfig(**{**SHARED, "pad_token_id": 1})),
}


@pytest.mark.parametrize("chunk", [8192, 50], ids=["one-batch", "several-steps"])
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(name: str, chunk: int, tmp_path: Path, serve: Callable[..., Any]) -> None:
    model = build(*ENCODERS[name])
    model.save_pretrained(tmp_path)
    engine = serve(options(tmp_path, chunk=chunk))
    assert engine.info["tasks"] == ["embed"]
    agree(ask(engine, prompts(), "embed"), [F.normalize(states(model, prompt)[0], dim=0) for prompt in prompts()])


def test_the_longest_text_fits_an_encoder(tmp_path: Path, serve: Callable[..., Any]) -> None:
    model = build(*ENCODERS["xlm-roberta"])
    model.save_pretrained(tmp_path)
    engine = serve(options(tmp_path))
    longest = engine.info["context_length"]
    assert longest == 128 - 2
    text = [5 + index % 100 for index in range(longest)]
    agree(ask(engine, [text], "embed"), [F.normalize(states(model, text)[0], dim=0)])


@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "plain"])
@pytest.mark.parametrize("mode", POOL)
@pytest.mark.parametrize("family", ["bert", "qwen3"])
def test_sentence_transformers_files(
    family: str, mode: str, normalize: bool, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    model = build(*(ENCODERS["bert"] if family == "bert" else DECODERS["Qwen3Model"]))
    model.save_pretrained(tmp_path)
    pool_sentence(tmp_path, mode, normalize)
    engine = serve(options(tmp_path, chunk=16))
    expected = [POOL[mode](states(model, prompt)) for prompt in prompts()]
    expected = [F.normalize(vector, dim=0) for vector in expected] if normalize else expected
    for _ in ("cold", "warm"):
        outputs = ask(engine, prompts(), "embed")
        agree(outputs, expected)
    reuses = family == "qwen3" and mode == "last"
    assert (sum(output.cached_tokens for output in outputs) > 0) == reuses


def add_matrix(folder: Path, index: int, matrix: nn.Linear, activation: nn.Module) -> None:
    """Insert a dense layer into the modules of sentence-transformers in the checkpoint."""
    inner = folder / f"{index}_Dense"
    inner.mkdir()
    kind = type(activation)
    values = {"in_features": matrix.in_features, "out_features": matrix.out_features, "bias": matrix.bias is not None}
    values["activation_function"] = f"{kind.__module__}.{kind.__name__}"
    (inner / "config.json").write_text(json.dumps(values))
    save_file({f"linear.{name}": tensor for name, tensor in matrix.state_dict().items()}, inner / "model.safetensors")
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(index, {"path": inner.name, "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))


def test_matrices_behind_the_pooling(tmp_path: Path, serve: Callable[..., Any]) -> None:
    """Dense layers after the pooling, as in EmbeddingGemma, work on a decoder with bidirectional attention."""
    config = transformers.Gemma3TextConfig(
        **DECODER, head_dim=16, sliding_window=24, use_bidirectional_attention=True, bos_token_id=1, eos_token_id=2
    )
    model = build("Gemma3TextModel", config)
    model.save_pretrained(tmp_path)
    pool_sentence(tmp_path, "mean", normalize=True)
    wider, narrower = nn.Linear(64, 96, bias=False), nn.Linear(96, 48)
    add_matrix(tmp_path, 2, wider, nn.Identity())
    add_matrix(tmp_path, 3, narrower, nn.Tanh())
    engine = serve(options(tmp_path))
    with torch.inference_mode():
        whole = [narrower(wider(states(model, prompt).mean(0))).tanh() for prompt in prompts()]
    agree(ask(engine, prompts(), "embed"), [F.normalize(vector, dim=0) for vector in whole])


DECODERS: Mapping[str, tuple[str, PretrainedConfig]] = {
    "LlamaModel": ("LlamaModel", transformers.LlamaConfig(**DECODER)),
    "MistralModel": ("MistralModel", transformers.MistralConfig(**DECODER, sliding_window=24)),
    "Qwen2Model": ("Qwen2Model", transformers.Qwen2Config(**DECODER)),
    "Qwen3Model": ("Qwen3Model", transformers.Qwen3Config(**DECODER, head_dim=32)),
    "Qwen2ForCausalLM": ("Qwen2ForCausalLM", transformers.Qwen2Config(**DECODER)),
    "Qwen3ForCausalLM": (
        "Qwen3ForCausalLM",
        transformers.Qwen3Config(**{**DECODER, "tie_word_embeddings": True}, head_dim=32),
    ),
}


@pytest.mark.parametrize(("chunk", "pool"), [(8192, 4096), (16, 4096), (16, 140)], ids=["whole", "chunks", "narrow"])
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_as_embedders(name: str, chunk: int, pool: int, tmp_path: Path, serve: Callable[..., Any]) -> None:
    model = build(*DECODERS[name])
    model.save_pretrained(tmp_path)
    task = "embed" if name.endswith("ForCausalLM") else AUTO
    engine = serve(options(tmp_path, task=task, chunk=chunk, pool=pool))
    body = model.base_model
    expected = [F.normalize(states(body, prompt)[-1], dim=0) for prompt in prompts()]
    for _ in ("cold", "warm"):
        outputs = ask(engine, prompts(), "embed")
        agree(outputs, expected)
    assert sum(output.cached_tokens for output in outputs) > 80
    accounts = engine.control("check")
    assert accounts["free"] + accounts["cached"] == accounts["capacity"]


@pytest.mark.parametrize("name", ["LlamaModel", "Qwen3ForCausalLM"])
def test_ranks_share_an_embedder(name: str, tmp_path: Path, serve: Callable[..., Any]) -> None:
    model = build(*DECODERS[name])
    model.save_pretrained(tmp_path)
    engine = serve(options(tmp_path, task="embed" if name.endswith("ForCausalLM") else AUTO, chunk=16, ranks=2))
    expected = [F.normalize(states(model.base_model, prompt)[-1], dim=0) for prompt in prompts()]
    agree(ask(engine, prompts(), "embed"), expected)


def test_ranks_share_a_scorer(tmp_path: Path, serve: Callable[..., Any]) -> None:
    model = build(*SCORERS["gemma2"])
    model.save_pretrained(tmp_path)
    engine = serve(options(tmp_path, chunk=16, ranks=2))
    with torch.inference_mode():
        expected = [model(input_ids=torch.tensor([prompt])).logits[0] for prompt in prompts()]
    agree(ask(engine, prompts(), "classify"), expected)


def test_a_headless_checkpoint_under_the_name_of_a_generating_one(tmp_path: Path, serve: Callable[..., Any]) -> None:
    """Embedding checkpoints often name the ForCausalLM class, but hold the body alone, without a prefix."""
    model = build(*DECODERS["Qwen2Model"])
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen2ForCausalLM"]}))
    engine = serve(options(tmp_path, task="embed"))
    agree(ask(engine, prompts(), "embed"), [F.normalize(states(model, prompt)[-1], dim=0) for prompt in prompts()])


SCORERS: Mapping[str, tuple[str, PretrainedConfig]] = {
    "llama": ("LlamaForSequenceClassification", transformers.LlamaConfig(**DECODER, num_labels=1)),
    "mistral": ("MistralForSequenceClassification", transformers.MistralConfig(**DECODER, num_labels=3)),
    "qwen2": ("Qwen2ForSequenceClassification", transformers.Qwen2Config(**DECODER, num_labels=3)),
    "qwen3": ("Qwen3ForSequenceClassification", transformers.Qwen3Config(**DECODER, num_labels=2, head_dim=32)),
    "gemma2": ("Gemma2ForSequenceClassification", transformers.Gemma2Config(**DECODER, num_labels=2, head_dim=32)),
}


@pytest.mark.parametrize("chunk", [8192, 16], ids=["whole", "chunks"])
@pytest.mark.parametrize("name", SCORERS)
def test_decoders_that_score(name: str, chunk: int, tmp_path: Path, serve: Callable[..., Any]) -> None:
    model = build(*SCORERS[name])
    model.save_pretrained(tmp_path)
    engine = serve(options(tmp_path, chunk=chunk))
    assert engine.info["tasks"] == ["classify"]
    with torch.inference_mode():
        expected = [model(input_ids=torch.tensor([prompt])).logits[0] for prompt in prompts()]
    for _ in ("cold", "warm"):
        outputs = ask(engine, prompts(), "classify")
        agree(outputs, expected)
    assert sum(output.cached_tokens for output in outputs) > 80


def test_reward_model_with_two_matrices(tmp_path: Path, serve: Callable[..., Any]) -> None:
    body = build(*DECODERS["Qwen2Model"])
    head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    weights = {f"model.{name}": tensor for name, tensor in body.state_dict().items()}
    weights |= {f"score.{name}": tensor.detach() for name, tensor in head.state_dict().items()}
    body.config.architectures = ["Qwen2ForRewardModel"]
    body.config.save_pretrained(tmp_path)
    from safetensors.torch import save_file

    save_file(weights, tmp_path / "model.safetensors")
    engine = serve(options(tmp_path, chunk=16))
    with torch.inference_mode():
        expected = [head(states(body, prompt)[-1]) for prompt in prompts()]
    agree(ask(engine, prompts(), "classify"), expected)


CROSS: Mapping[str, tuple[str, PretrainedConfig]] = {
    "bert": ("BertForSequenceClassification", transformers.BertConfig(**SHARED, num_labels=1)),
    "bert-labels": ("BertForSequenceClassification", transformers.BertConfig(**SHARED, num_labels=4)),
    "bert-one-type": ("BertForSequenceClassification", transformers.BertConfig(**SHARED, type_vocab_size=1)),
    "roberta": (
        "RobertaForSequenceClassification",
        transformers.RobertaConfig(**{**SHARED, "pad_token_id": 1}, num_labels=1),
    ),
    "xlm-roberta": (
        "XLMRobertaForSequenceClassification",
        transformers.XLMRobertaConfig(**{**SHARED, "pad_token_id": 1}, num_labels=1, type_vocab_size=1),
    ),
}


def segments(tokens: list[int]) -> list[int]:
    first = tokens.index(SEPARATOR)
    return [int(index > first) for index in range(len(tokens))]


@pytest.mark.parametrize("chunk", [8192, 50], ids=["one-batch", "several-steps"])
@pytest.mark.parametrize("name", CROSS)
def test_cross_encoders(name: str, chunk: int, tmp_path: Path, serve: Callable[..., Any]) -> None:
    model = build(*CROSS[name])
    model.save_pretrained(tmp_path)
    engine = serve(options(tmp_path, chunk=chunk))
    assert engine.info["tasks"] == ["classify", "rerank"]
    has_types = name in ("bert", "bert-labels")
    expected = []
    with torch.inference_mode():
        for pair in pairs():
            types = torch.tensor([segments(pair)]) if has_types else None
            expected.append(model(input_ids=torch.tensor([pair]), token_type_ids=types).logits[0])
    agree(ask(engine, pairs(), "rerank"), expected)
    agree(ask(engine, pairs(), "classify"), expected)
