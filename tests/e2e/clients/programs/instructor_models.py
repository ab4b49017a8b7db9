"""instructor: answers as pydantic models, in the modes that rest on ``response_format``."""

from __future__ import annotations

import json
import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, Field

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    country: Literal["France", "Japan"]
    millions: int = Field(ge=0, le=99)


def ask(mode: instructor.Mode) -> City:
    """Ask for a city without retries, so that only the server enforces the schema."""
    client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="None", max_retries=0)
    return instructor.from_openai(client, mode=mode).chat.completions.create(
        model="demo", messages=QUESTION, response_model=City, max_retries=0, temperature=0, max_tokens=200
    )


try:
    answers = {"schema": ask(instructor.Mode.JSON_SCHEMA).model_dump()}
except Exception as error:
    if "grammar backend" not in str(error):
        raise
    answers = {"skip": f"the server has no structured outputs: {error}"[:300]}
print(json.dumps(answers))
