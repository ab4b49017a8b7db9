"""``sglang-plug plugins new`` creates distributions whose components conform, and can be served, once installed."""

from __future__ import annotations

import base64
import importlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from sglang_plug.__main__ import main
from sglang_plug_api.scaffold.rendering import template_kinds
from tests.e2e.servers import ENVIRONMENT, READY, TIMEOUT
from tests.made_once import made_once

from .environments import interpreter, make_environment, run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PROMPT = {"text": "One, two,", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Installation:
    """A virtual environment in which a distribution of each kind is installed."""

    python: Path
    projects: list[Path]

    @contextmanager
    def served(self, log: Path, *flags: str) -> Iterator[httpx.Client]:
        """Yield a client of a server with ``flags``, which ends with the block."""
        command = [self.python, "-m", "sglang_plug", "serve", "--port", "0", "--max-total-tokens", "8192", *flags]
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                list(map(str, command)),
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **ENVIRONMENT, "XDG_STATE_HOME": str(log.with_suffix(""))},
            ) as process,
        ):
            try:
                assert process.stdout is not None
                line = next((line for line in process.stdout if READY in line), "")
                assert line, f"the server did not get ready:\n{log.read_text(errors='replace')}"
                with httpx.Client(base_url=line.split(" at ")[1].strip(), timeout=TIMEOUT) as client:
                    yield client
            finally:
                process.terminate()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    def make(folder: Path) -> None:
        for kind in template_kinds():
            assert main(["plugins", "new", kind, f"new-{kind}", "--into", str(folder / "projects")]) == 0
        make_environment(folder / "venv", sorted((folder / "projects").iterdir()))

    folder = made_once(tmp_path_factory, "new", make)
    return Installation(interpreter(folder / "venv"), sorted((folder / "projects").iterdir()))


def test_a_plugin_of_each_kind_conforms(installed: Installation) -> None:
    names = [folder.name for folder in installed.projects]
    tested = run(installed.python, "-m", "sglang_plug", "plugins", "test", "--strict", *names, env=one_thread())
    assert f"{len(names)} passed" in tested
    run(installed.python, "-m", "sglang_plug", "plugins", "check", "sglang-plug-new-eviction")


def test_the_tests_of_each_distribution_pass(installed: Installation) -> None:
    tests = [folder / "tests" for folder in installed.projects]
    arguments = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", f"--rootdir={tests[0].parents[1]}")
    tested = run(installed.python, "-m", "pytest", *arguments, "-c", os.devnull, *tests, env=one_thread())
    assert "failed" not in tested and "passed" in tested


def selected(*flags_and_kinds: str) -> list[str]:
    """Return flags that select the new components: pairs of flag and kind."""
    pairs = zip(flags_and_kinds[::2], flags_and_kinds[1::2], strict=True)
    return [text for flag, kind in pairs for text in (flag, f"new-{kind}")]


def settings(**values: str) -> list[str]:
    """Return ``--set`` for settings of the new components: kind and ``key=value``."""
    return [text for kind, value in values.items() for text in ("--set", f"new-{kind.replace('_', '-')}.{value}")]


def test_components_of_the_engine_and_of_the_api_serve_the_demo(installed: Installation, tmp_path: Path) -> None:
    components = selected(
        "--attention-backend", "attention", "--kernels", "kernels", "--quantization", "quantization",
        "--prefix-cache", "prefix-cache", "--eviction-policy", "eviction", "--kv-store", "kv-store",
        "--schedule-policy", "schedule", "--speculative-algorithm", "drafter", "--grammar-backend", "grammar",
        "--tool-call-parser", "tool-parser", "--reasoning-parser", "reasoning-parser",
    )  # fmt: skip
    values = settings(
        eviction="keep_after_hits=5", kv_store="megabytes=64", prefix_cache="renew=false", reasoning_parser="tag=why",
        step_extension="max_prompt_tokens=50", tool_parser="mark=RUN", observer="slow_seconds=5",
        route="special=false",
    )  # fmt: skip
    with installed.served(tmp_path / "log", *components, *values) as client:
        fields = {"new_logits_processor_forbidden": [1, 2], **PROMPT["sampling_params"]}  # type: ignore[dict-item]
        answer = client.post("/generate", json={**PROMPT, "sampling_params": fields}).json()
        assert len(answer["output_ids"]) == 4 and not {1, 2} & set(answer["output_ids"])
        too_long = client.post("/generate", json={"input_ids": [5] * 51})
        assert too_long.status_code == 400 and "50 are allowed" in too_long.text
        assert client.post("/new-route/count", json={"text": "How long is this?"}).json()["tokens"] > 1
        called = client.post(
            "/parse_function_call", json={"text": "RUN f {}", "tool_call_parser": "new-tool-parser", "tools": []}
        ).json()
        assert called["calls"][0]["name"] == "f"
        text = {"text": "<why>so</why>yes", "reasoning_parser": "new-reasoning-parser"}
        assert client.post("/separate_reasoning", json=text).json() == {"reasoning_text": "so", "text": "yes"}


def test_formats_of_checkpoints_serve_a_new_model(installed: Installation, tmp_path: Path) -> None:
    folder = checkpoint(installed, tmp_path / "model")
    flags = selected("--checkpoint-format", "checkpoint", "--load-format", "weights", "--tokenizer-mode", "tokenizer")
    values = settings(checkpoint="file=new.json", weights="dtype=bfloat16", tokenizer="separator=> ")
    values += ["--set", "NewModelForCausalLM.gelu=tanh"]
    with installed.served(tmp_path / "log", "--model-path", str(folder), *flags, *values) as client:
        assert client.post("/generate", json=PROMPT).json()["meta_info"]["prompt_tokens"] == len(b"One, two,") + 1


def checkpoint(installed: Installation, folder: Path) -> Path:
    """Write a checkpoint in the format of the new reader, loader and tokenizer, for the new model."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for project in installed.projects:
            patch.syspath_prepend(str(project))
        example = importlib.import_module("sglang_plug_new_model.example")
    config = {**vars(example.CONFIG), "vocab_size": 258, "architectures": ["NewModelForCausalLM"]}
    (folder / "new.json").write_text(json.dumps(config))
    tensors = example.PlainModel(type(example.CONFIG)(**config)).state_dict()
    lines = [json.dumps([name, tensor.tolist()]) for name, tensor in tensors.items()]
    (folder / "weights.jsonl").write_text("\n".join([str(len(lines)), *lines, ""]))
    (folder / "special_tokens.json").write_text('{"start": "<s>", "end": "</s>"}')
    return folder


def test_an_adapter_and_a_store_serve_the_demo(installed: Installation, tmp_path: Path) -> None:
    adapter = tmp_path / "scales"
    adapter.mkdir()
    (adapter / "scales.json").write_text(json.dumps({"model.layers.0.mlp.down_proj": [0.5] * 256}))
    flags = ("--lora-paths", f"scaled={adapter}", "--file-storage-path", str(tmp_path / "files"))
    flags = (*flags, *selected("--store", "store"), *settings(store="large_bytes=10"))
    with installed.served(tmp_path / "log", *flags) as client:
        alone, scaled = (
            client.post("/generate", json={**PROMPT, "lora_path": name, "return_logprob": True}).json()["meta_info"]
            for name in (None, "scaled")
        )
        assert alone["output_token_logprobs"] != scaled["output_token_logprobs"]
        line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 2}}
        upload = {"file": ("requests.jsonl", json.dumps(line).encode())}
        file = client.post("/v1/files", files=upload, data={"purpose": "batch"}).json()
        batch_body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = client.post("/v1/batches", json=batch_body).json()
        while batch["status"] in ("validating", "in_progress", "finalizing"):
            time.sleep(0.1)
            batch = client.get(f"/v1/batches/{batch['id']}").json()
        assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
        assert json.loads(client.get(f"/v1/files/{batch['output_file_id']}/content").text)["custom_id"] == "1"
        answer = client.post("/v1/responses", json={"input": "One, two,", "max_output_tokens": 2}).json()
        assert client.get(f"/v1/responses/{answer['id']}").json()["output"] == answer["output"]
    assert f"the file {file['id']} has {file['bytes']} bytes" in (tmp_path / "log").read_text(errors="replace")


def test_a_media_processor_serves_the_model_of_its_page(installed: Installation, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "kinds" / "media-processor.md").read_text(encoding="utf-8")
    for name in ("bright.py", "make_checkpoint.py"):
        _, text = page.split(f'```python title="{name}"\n')
        code = text.split("\n```")[0].replace("ExampleFor", "NewMediaProcessorFor")
        (tmp_path / name).write_text(code + "\n")
    model = tmp_path / "model"
    run(installed.python, tmp_path / "make_checkpoint.py", model)
    flags = ("--model-path", str(model), "--plugin", str(tmp_path / "bright.py"))
    with installed.served(tmp_path / "log", *flags) as client:
        answers = []
        for colour in (0, 255):
            image = base64.b64encode(b"P6\n8 8\n255\n" + bytes([colour] * 192)).decode()
            body = {"input_ids": [5, 90, 6], "image_data": image, "sampling_params": PROMPT["sampling_params"]}
            answers.append(client.post("/generate", json={**body, "return_logprob": True}).json()["meta_info"])
        assert [answer["prompt_tokens"] for answer in answers] == [2 + 4, 2 + 4]
        assert answers[0]["output_token_logprobs"] != answers[1]["output_token_logprobs"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--replicas", "2", *selected("--routing-policy", "routing", "--deployment", "deployment")),
        ("--device", "cpu", "--tp-size", "2", *selected("--executor", "executor")),
    ],
    ids=["routing and deployment", "executor"],
)
def test_components_of_several_processes_serve_the_demo(
    flags: tuple[str, ...], installed: Installation, tmp_path: Path
) -> None:
    with installed.served(tmp_path / "log", *flags) as client:
        assert len(client.post("/generate", json=PROMPT).json()["output_ids"]) == 4


def test_the_command_counts_tokens(installed: Installation) -> None:
    counted = [
        int(run(installed.python, "-m", "sglang_plug", "new-command", "How long?", "--set", f"new-command.{setting}"))
        for setting in ("special=false", "special=true")
    ]
    assert 0 < counted[0] <= counted[1]
