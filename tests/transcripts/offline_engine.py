"""A program, run by the interpreter of the recorded tree, that serves checkpoints and writes the answers."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

PARAMETERS: dict[str, Any] = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}


def answers(job: dict[str, Any]) -> Any:
    """Return the answers of the offline engine, without ids and durations."""
    from sglang_plug_api import Engine

    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_total_tokens": 1024, "random_seed": 7}
    if "tokens" in job:
        options["skip_tokenizer_init"] = True
    with Engine(job["path"], log_level="error", **options) as engine:
        if job["pooling"]:
            return engine.encode(input_ids=job["tokens"])
        logprob_options: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
        if "image" in job:
            return engine.generate(job["prompt"], PARAMETERS, image_data=job["image"], **logprob_options)
        return [
            engine.generate(input_ids=job["tokens"], sampling_params=PARAMETERS, **logprob_options),
            engine.generate(
                input_ids=job["tokens"], sampling_params={**PARAMETERS, "temperature": 1, "sampling_seed": 3}
            ),
        ]


def main(plan: str, results: str) -> None:
    """Run all jobs of a plan; the answer of a failed job is its error."""
    with Path(results).open("w", encoding="utf-8") as file:
        for job in json.loads(Path(plan).read_text(encoding="utf-8")):
            try:
                record = {"family": job["family"], "answers": answers(job)}
            except Exception as error:
                record = {"family": job["family"], "error": f"{type(error).__name__}: {error}"}
            file.write(json.dumps(record) + "\n")
            file.flush()
            gc.collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
