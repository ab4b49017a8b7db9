"""``vllm bench serve``: arguments are the API, its path, the tokenizer's folder and the server's address."""

from __future__ import annotations

import argparse
import json
import sys

try:
    from vllm.benchmarks.serve import add_cli_args, main
except Exception as error:
    print(json.dumps({"skip": f"vllm cannot be imported here: {error}"}))
    sys.exit()

backend, endpoint, tokenizer, url = sys.argv[1:]
parser = argparse.ArgumentParser()
add_cli_args(parser)
flags = ["--backend", backend, "--endpoint", endpoint, "--base-url", url, "--model", "demo", "--tokenizer", tokenizer]
data = "random-rerank" if backend == "vllm-rerank" else "random"
flags += ["--dataset-name", data, "--random-input-len", "20", "--random-output-len", "8", "--num-prompts", "6"]
result = main(parser.parse_args(flags))
names = ("completed", "failed", "total_input_tokens", "total_output_tokens")
print(json.dumps({name: result.get(name) for name in names}))
