"""The files with the figures of a benchmark."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_plug import ConfigError

from .arguments import pairs
from .figures import RequestResult
from .load import Load

SECRET = ("api_key", "headers")
"""Parameters of a load that are not written."""


def check_outputs(options: argparse.Namespace) -> None:
    """Raise ``ConfigError`` if a file that the user named cannot be written, before anything is measured."""
    pairs(options.metadata, "--metadata")
    for flag, file in (("--output-file", options.output_file), ("--html", options.html)):
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise ConfigError(f"{flag} {file}: there is no folder to write this file into, or it is a folder")


def load_settings(options: argparse.Namespace, load: Load, objectives: Mapping[str, float]) -> dict[str, Any]:
    """Return what was measured, for the files: date, load and notes, without secrets."""
    settings = {name: value for name, value in dataclasses.asdict(load).items() if name not in SECRET}
    return {
        **pairs(options.metadata, "--metadata"),
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "backend": options.backend,
        "model_id": load.model,
        "dataset_name": options.dataset_name,
        "num_prompts": options.num_prompts,
        **settings,
        "request_rate": str(load.request_rate),
        "goodput_limits_ms": dict(objectives),
    }


def details(results: Sequence[RequestResult]) -> dict[str, Any]:
    """Return the times of each request, in seconds, under the names of ``vllm bench serve --save-detailed``."""
    return {
        "input_lens": [result.prompt_tokens for result in results],
        "output_lens": [result.output_tokens for result in results],
        "ttfts": [result.arrivals[0] - result.sent if result.arrivals else None for result in results],
        "itls": [[gap / 1e3 for gap in result.gaps()] for result in results],
        "errors": [result.error for result in results],
    }


def write_results(options: argparse.Namespace, load: Load, content: Mapping[str, Any]) -> None:
    """Write ``--output-file``, and the file of ``--save-result``. Raises ``ConfigError``."""
    if options.output_file is not None:
        write_json(options.output_file, content)
    if options.save_result:
        folder = options.result_dir or Path()
        name = options.result_filename or _file_name(options.label or options.backend, load)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--result-dir {folder}: {error}") from error
        write_json(folder / name, content)
        print(f"results: {folder / name}")


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` into ``file``. Raises ``ConfigError``."""
    try:
        file.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error}") from error


def _file_name(label: str, load: Load) -> str:
    """Return the name that ``vllm bench serve`` gives the file."""
    concurrency = f"-concurrency{load.max_concurrency}" if load.max_concurrency else ""
    model = load.model.rsplit("/", 1)[-1]
    return f"{label}-{load.request_rate}qps{concurrency}-{model}-{time.strftime('%Y%m%d-%H%M%S')}.json"
