"""A call of litellm's ``embedding``."""

from __future__ import annotations

import json
import sys

import litellm

texts = ["A man is eating food.", "Someone is having a meal.", "Stock prices fell sharply on Monday."]
answer = litellm.embedding(model="openai/demo", api_base=f"{sys.argv[1]}/v1", api_key="None", input=texts)
print(json.dumps({"documents": [item["embedding"] for item in answer.data], "tokens": answer.usage.prompt_tokens}))
