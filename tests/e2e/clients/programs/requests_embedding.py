"""The embedding calls of the published pages, made with ``requests``."""

from __future__ import annotations

import json
import sys

import requests

native = requests.post(f"{sys.argv[1]}/encode", json={"model": "demo", "text": "Once upon a time"}, timeout=240).json()
openai = requests.post(
    f"{sys.argv[1]}/v1/embeddings", json={"model": "demo", "input": "Once upon a time"}, timeout=240
).json()
print(json.dumps({"native": native["embedding"], "openai": openai["data"][0]["embedding"]}))
