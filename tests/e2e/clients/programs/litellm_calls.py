"""Calls of litellm, with the server as a provider with OpenAI's API."""

from __future__ import annotations

import asyncio
import json
import sys

import litellm

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ASK = {"model": "openai/demo", "api_base": f"{sys.argv[1]}/v1", "api_key": "None", "messages": QUESTION}

answer = litellm.completion(**ASK, temperature=0)
chunks = list(litellm.completion(**ASK, temperature=0, stream=True, stream_options={"include_usage": True}))
try:
    litellm.completion(**ASK, temperature=-1)
    refusal = ""
except litellm.BadRequestError as error:
    refusal = f"{error.status_code} {error.message}"
text = litellm.text_completion(
    model="text-completion-openai/demo", api_base=ASK["api_base"], api_key="None", prompt="Count from 1", max_tokens=4
)
results = {
    "text": answer.choices[0].message.content,
    "reason": answer.choices[0].finish_reason,
    "usage": [answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens],
    "pieces": [chunk.choices[0].delta.content for chunk in chunks if chunk.choices],
    "refusal": refusal,
    "completion_tokens": text.usage.completion_tokens,
    "async": asyncio.run(litellm.acompletion(**ASK, temperature=0)).choices[0].message.content,
}
print(json.dumps(results))
