"""The distributions under ``plugins/``, installed like third-party ones, and loaded without installing."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from tests.made_once import made_once

from .environments import interpreter, make_environment, run

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
DEMO = ROOT / "builtin_models" / "sglang_plug_models" / "demo"
READY = re.compile(r"http://127\.0\.0\.1:\d+")
EXPECTED = {
    ("command", "check-sglang-program"): "sglang-compat",
    ("command", "detect-watermark"): "sglang-plug-watermark",
    ("command", "ray"): "sglang-plug-ray",
    ("deployment", "ray"): "sglang-plug-ray",
    ("drafter", "recall"): "sglang-plug-recall",
    ("eviction", "slru"): "sglang-plug-slru",
    ("kv-store", "redis"): "sglang-plug-redis",
    ("logits-processor", "thinking-budget"): "sglang-plug-thinking-budget",
    ("logits-processor", "watermark"): "sglang-plug-watermark",
    ("model", "GPTNeoXForCausalLM"): "sglang-plug-gpt-neox",
    ("observer", "otel"): "sglang-plug-otel",
    ("route", "anthropic"): "sglang-plug-anthropic",
    ("step-extension", "kv-events"): "sglang-plug-kv-events",
    ("store", "postgres"): "sglang-plug-postgres",
}
WITH_A_SERVER = {"sglang-plug-postgres"}
"""Distributions whose own tests run the conformance test with a server that they start."""
WITH_A_CLUSTER = {"sglang-plug-ray"}
"""Distributions whose own tests start clusters, which takes minutes: ``make test-ray`` runs them."""
TESTED = [plugin for plugin in PLUGINS if plugin.name not in WITH_A_CLUSTER]
USED = {"drafter", "eviction", "model"}
"""Kinds that ``/server_info`` lists as in use."""


def listed(*command: str | Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the third-party components in the output of ``plugins list --json``."""
    table = json.loads(run(*command, "plugins", "list", "--json"))
    assert table["failures"] == []
    return {
        (component["kind"], component["name"]): component
        for component in table["components"]
        if component["distribution"] != "sglang-plug"
    }


LIBRARIES = {
    ("deployment", "ray"): "ray",
    ("kv-store", "redis"): "redis",
    ("observer", "otel"): "opentelemetry.exporter.otlp.proto.http",
    ("store", "postgres"): "psycopg_pool",
}
"""The libraries that components wrap."""


def unavailable() -> set[tuple[str, str]]:
    """Return components whose wrapped library is not installed."""
    return {component for component, library in LIBRARIES.items() if not is_importable(library)}


def is_importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def has_redis_server() -> bool:
    """Report whether there is a program that the Redis plugin can be tested with."""
    return any(map(shutil.which, ("redis-server", "valkey-server")))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter with the installed packages and the plugins."""

    def make(root: Path) -> None:
        ignored = shutil.ignore_patterns("build", "*.egg-info")
        copies = [shutil.copytree(plugin, root / plugin.name, ignore=ignored) for plugin in PLUGINS]
        make_environment(root / "venv", copies)

    return interpreter(made_once(tmp_path_factory, "installed", make) / "venv")


@pytest.fixture(scope="module")
def outcomes(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    """Run the plugins' own tests, all in one process, and return for each distribution what was wrong in each test."""

    def make(folder: Path) -> None:
        options = ("-q", "-p", "no:cacheprovider", f"--junitxml={folder / 'report.xml'}")
        command = (python, "-m", "pytest", *options, *(plugin / "tests" for plugin in TESTED))
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode in (0, 1), f"{done.stdout}\n{done.stderr}"

    report = made_once(tmp_path_factory, "own-tests", make) / "report.xml"
    failures: dict[str, list[str]] = {plugin.name: [] for plugin in TESTED}
    for case in ElementTree.parse(report).iter("testcase"):
        _, distribution, *_ = (case.attrib["classname"] or case.attrib["name"]).split(".")
        problems = [f"{case.attrib['name']}: {element.text}" for element in case if element.tag in ("failure", "error")]
        failures[distribution].append("\n".join(problems))
    return failures


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GPTNeoXForCausalLM]:
    """Return a tiny random GPT-NeoX with the demo model's vocabulary."""
    path = tmp_path_factory.mktemp("gpt-neox")
    torch.manual_seed(3)
    config = GPTNeoXConfig(
        vocab_size=4096,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    reference = GPTNeoXForCausalLM(config).float().eval()
    reference.save_pretrained(path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (source,) = DEMO.glob(f"*/{file}")
        shutil.copy(source, path)
    return path, reference


@pytest.fixture(scope="module")
def url(
    python: Path, model: tuple[Path, GPTNeoXForCausalLM], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Start a server process that uses both plugins."""
    log = tmp_path_factory.mktemp("server") / "stderr.txt"
    flags = ["--model-path", str(model[0]), "--port", "0", "--device", "cpu", "--dtype", "float32"]
    command = [
        str(python),
        "-m",
        "sglang_plug",
        "serve",
        *flags,
        "--eviction-policy",
        "slru",
        "--speculative-algorithm",
        "recall",
        "--max-total-tokens",
        "512",
    ]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    try:
        ready = next((result for line in process.stdout if (result := READY.search(line))), None)
        assert ready is not None, log.read_text()
        yield ready.group()
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@torch.inference_mode()
def greedy(model: GPTNeoXForCausalLM, tokens: list[int], count: int) -> list[int]:
    row = list(tokens)
    for _ in range(count):
        row.append(int(model(torch.tensor([row])).logits[0, -1].argmax()))
    return row[len(tokens) :]


@pytest.mark.slow
@pytest.mark.parametrize("plugin", TESTED, ids=lambda path: path.name)
def test_its_own_tests_pass_where_it_is_installed(plugin: Path, outcomes: Mapping[str, list[str]]) -> None:
    assert outcomes[plugin.name], "no test was run"
    assert "\n".join(filter(None, outcomes[plugin.name])) == ""


@pytest.mark.slow
def test_installed_their_components_conform(python: Path) -> None:
    strict = [] if unavailable() or not has_redis_server() else ["--strict"]
    names = [plugin.name for plugin in PLUGINS if plugin.name not in WITH_A_SERVER]
    run(python, "-m", "sglang_plug", "plugins", "test", *strict, *names)


@pytest.mark.slow
def test_installed_it_is_listed_with_its_distribution(python: Path) -> None:
    components = listed(python, "-m", "sglang_plug")
    assert {key: component["distribution"] for key, component in components.items()} == EXPECTED
    assert {component["status"] for key, component in components.items() if key not in unavailable()} == {"available"}
    assert {component["version"] for component in components.values()} == {"0.1.0"}


@pytest.mark.slow
def test_a_server_serves_the_model_and_says_whose_it_is(url: str, model: tuple[Path, GPTNeoXForCausalLM]) -> None:
    tokens = [17, 300, 44, 9, 1021, 2]
    sampling = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    with httpx.Client(base_url=url, timeout=240) as client:
        answer = client.post("/generate", json={"input_ids": tokens, "sampling_params": sampling})
        assert answer.status_code == 200, answer.text
        assert answer.json()["output_ids"] == greedy(model[1], tokens, 8)
        components = client.get("/server_info").json()["components"]
    used = {(kind, components[kind]["name"]): components[kind]["distribution"] for kind in USED}
    assert used == {key: distribution for key, distribution in EXPECTED.items() if key[0] in USED}


@pytest.mark.slow
def test_what_was_said_before_is_drafted(url: str) -> None:
    body = {
        "input_ids": [9, 401, 77, 5],
        "sampling_params": {"temperature": 1.0, "sampling_seed": 5, "max_new_tokens": 40, "ignore_eos": True},
    }
    with httpx.Client(base_url=url, timeout=240) as client:
        first, second = (client.post("/generate", json=body).json() for _ in range(2))
    assert second["output_ids"] == first["output_ids"]
    assert second["meta_info"]["spec_num_correct_drafts"] > 20


def test_a_folder_is_enough_to_try_them() -> None:
    components = listed(sys.executable, "-m", "sglang_plug", "--plugins-dir", ROOT / "plugins")
    assert {key: component["distribution"] for key, component in components.items()} == EXPECTED
