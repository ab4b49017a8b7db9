from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from sglang_plug import CheckpointRequest, ConfigError
from sglang_plug_backends.huggingface.checkpoint import merge, open_checkpoint

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "rope_theta": 500000.0,
}


def write(folder: Path, name: str, data: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = data if isinstance(data, str) else json.dumps(data)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


class Hub:
    """A stand-in for the Hugging Face hub with cached and downloadable files, which records its calls."""

    def __init__(self) -> None:
        self.cached: Path | None = None
        self.online: Path | None = None
        self.downloads: list[dict[str, Any]] = []

    def snapshot_download(self, source: str, *, local_files_only: bool = False, **options: Any) -> str:
        if not local_files_only:
            self.downloads.append({"source": source, **options})
        result = self.cached if local_files_only else self.online
        if result is None:
            raise OSError("no\n  network")
        return str(result)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_known_family_gets_its_defaults(tmp_path: Path) -> None:
    write(tmp_path, "config.json", LLAMA)
    write(tmp_path, "generation_config.json", {"temperature": 0.6})
    checkpoint = open_checkpoint(CheckpointRequest(source=str(tmp_path)))
    assert checkpoint.architecture == "LlamaForCausalLM"
    assert (checkpoint.path, checkpoint.source) == (tmp_path, str(tmp_path))
    assert (checkpoint.config.hidden_size, checkpoint.config.rms_norm_eps) == (64, 1e-06)
    assert checkpoint.generation == {"temperature": 0.6}


def test_unknown_family_has_what_its_file_says(tmp_path: Path) -> None:
    write(
        tmp_path, "config.json", {"architectures": ["Toy"], "model_type": "toy-of-mine", "width": 3, "deep": {"a": 1}}
    )
    checkpoint = open_checkpoint(CheckpointRequest(source=str(tmp_path)))
    config = checkpoint.config
    assert (checkpoint.architecture, config.model_type) == ("Toy", "toy-of-mine")
    assert (config.width, config.deep) == (3, {"a": 1})
    assert checkpoint.generation == {}
    with pytest.raises(AttributeError):
        config.hidden_size  # noqa: B018


def test_file_without_model_type(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(CheckpointRequest(source=str(write(tmp_path, "config.json", {"width": 3}))))
    assert (checkpoint.architecture, checkpoint.config.width) == ("", 3)


def test_numbers_that_json_has_no_word_for(tmp_path: Path) -> None:
    """NaN and infinity are read in the notation of ``save_pretrained``, at any depth."""
    limits = {"time_step_limit": [0.0, {"__float__": "Infinity"}], "other": {"minimum": {"__float__": "-Infinity"}}}
    kept = {"words": {"__float__": "many"}, "more": {"__float__": "Infinity", "too": 1}}
    write(tmp_path, "config.json", {"model_type": "bamba", **limits, **kept})
    config = open_checkpoint(CheckpointRequest(source=str(tmp_path))).config
    assert (config.time_step_limit[1], config.other["minimum"]) == (math.inf, -math.inf)
    assert (config.words, config.more) == (kept["words"], kept["more"])


def test_overrides_are_merged(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    write(tmp_path, "config.json", {**LLAMA, "rope_scaling": scaling})
    overrides = {"rope_scaling": {"factor": 4.0}, "hidden_size": 128}
    config = open_checkpoint(CheckpointRequest(source=str(tmp_path), overrides=overrides)).config
    assert config.hidden_size == 128
    assert config.rope_parameters["factor"] == 4.0
    assert config.rope_parameters["rope_type"] == "linear"


def test_merge_replaces_all_but_objects() -> None:
    base = {"a": {"b": 1, "c": [1, 2]}, "d": None, "e": 1}
    assert merge(base, {"a": {"c": [3]}, "d": {"x": 1}, "f": 2}) == {
        "a": {"b": 1, "c": [3]},
        "d": {"x": 1},
        "e": 1,
        "f": 2,
    }
    assert base == {"a": {"b": 1, "c": [1, 2]}, "d": None, "e": 1}


def test_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "model", "config.json", LLAMA)
    assert open_checkpoint(CheckpointRequest(source="~/model")).path == tmp_path / "model"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json is not valid JSON"),
        ("[1]", "must hold a JSON object, not list"),
        (json.dumps({**LLAMA, "hidden_size": "wide"}), "hidden_size must be a whole number above 0, not 'wide'"),
        (json.dumps({**LLAMA, "num_attention_heads": 7}), "not a valid 'llama' configuration: .*multiple"),
    ],
)
def test_unusable_configuration(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_checkpoint(CheckpointRequest(source=str(write(tmp_path, "config.json", text))))
    assert "\n" not in str(caught.value)


def test_unusable_generation_configuration(tmp_path: Path) -> None:
    write(write(tmp_path, "config.json", LLAMA), "generation_config.json", "}")
    with pytest.raises(ConfigError, match="generation_config.json is not valid JSON"):
        open_checkpoint(CheckpointRequest(source=str(tmp_path)))


def test_folder_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no config.json"):
        open_checkpoint(CheckpointRequest(source=str(tmp_path)))


@pytest.mark.parametrize("source", ["./missing", "/no/such/folder", "~/missing", "a/b/c"])
def test_mistyped_path_is_called_a_folder_and_never_sent_to_the_hub(hub: Hub, source: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot find model '{source}': there is no such folder"):
        open_checkpoint(CheckpointRequest(source=source))
    assert hub.downloads == []


def test_mistyped_path_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "llama-small").mkdir()
    with pytest.raises(ConfigError, match="did you mean '.*/llama-small'"):
        open_checkpoint(CheckpointRequest(source=str(tmp_path / "lama-small")))


def test_file_is_not_a_folder(tmp_path: Path) -> None:
    file = write(tmp_path, "model.gguf", "x") / "model.gguf"
    with pytest.raises(ConfigError, match="it is a file; name the folder"):
        open_checkpoint(CheckpointRequest(source=str(file)))


def test_unreachable_hub_is_one_line(hub: Hub) -> None:
    with pytest.raises(ConfigError, match=r"neither a local folder nor .*\(OSError: no network\)$"):
        open_checkpoint(CheckpointRequest(source="acme/model"))


def test_download_takes_no_pickles(hub: Hub, tmp_path: Path) -> None:
    hub.online = write(tmp_path, "config.json", LLAMA)
    open_checkpoint(CheckpointRequest(source="acme/model", revision="v2"))
    (download,) = hub.downloads
    assert (download["source"], download["revision"]) == ("acme/model", "v2")
    patterns = download["allow_patterns"]
    assert "*.safetensors" in patterns
    assert not [pattern for pattern in patterns if pattern.endswith((".bin", ".pt", ".pth", ".pkl", ".py"))]


def test_random_weights_download_none(hub: Hub, tmp_path: Path) -> None:
    hub.online = write(tmp_path, "config.json", LLAMA)
    open_checkpoint(CheckpointRequest(source="acme/model", weights=False))
    assert "*.safetensors" not in hub.downloads[0]["allow_patterns"]


def test_complete_cache_needs_no_network(hub: Hub, tmp_path: Path) -> None:
    hub.cached = write(write(tmp_path, "config.json", LLAMA), "model.safetensors", "x")
    assert open_checkpoint(CheckpointRequest(source="acme/model")).path == tmp_path
    assert hub.downloads == []


@pytest.mark.parametrize("weights", [True, False])
def test_cache_without_weights_serves_only_random_weights(hub: Hub, tmp_path: Path, weights: bool) -> None:
    hub.cached = write(tmp_path / "cache", "config.json", LLAMA)
    hub.online = write(tmp_path / "online", "config.json", LLAMA)
    opened = open_checkpoint(CheckpointRequest(source="acme/model", weights=weights))
    assert opened.path.name == ("online" if weights else "cache")


def test_cache_that_lacks_a_shard_is_completed(hub: Hub, tmp_path: Path) -> None:
    hub.cached = write(tmp_path / "cache", "config.json", LLAMA)
    write(hub.cached, "model.safetensors.index.json", {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
    write(hub.cached, "one.safetensors", "x")
    hub.online = write(tmp_path / "online", "config.json", LLAMA)
    assert open_checkpoint(CheckpointRequest(source="acme/model")).path.name == "online"
    write(hub.cached, "two.safetensors", "x")
    assert open_checkpoint(CheckpointRequest(source="acme/model")).path.name == "cache"
