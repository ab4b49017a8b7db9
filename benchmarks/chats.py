"""W5: chats whose answers must follow a JSON schema, beside chats of the same length without one.

Run as ``python -m benchmarks.chats``. Eight chats at once, three times, at most 96 tokens each, random weights and a
tokenizer that is made on the spot, so the text is nonsense; the schema bounds every part, so that nonsense can finish.
Schema and no schema take turns in one run. Reported are output tokens per second, and how many answers were finished
and valid. With ``--url`` any server with an OpenAI-compatible API is measured in the same way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.models import SHAPES, Shape, write_model
from benchmarks.report import parser, table, write_json
from benchmarks.server import serving

TOGETHER, TIMES, MOST_TOKENS = 8, 3, 96
WORDS = 20
"""Words of each question after its first sentence, so that no two are alike."""
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"enum": ["Paris", "Berlin", "Rome"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3},
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "city", "tags", "active"],
    "additionalProperties": False,
}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for one in messages %}<|im_start|>{{ one['role'] }}\n{{ one['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One chat's."""

    tokens: int
    finished: bool
    text: str

    @property
    def valid(self) -> bool:
        """True if it is what the schema describes."""
        import jsonschema  # a test dependency

        try:
            jsonschema.validate(json.loads(self.text), SCHEMA)
        except (ValueError, jsonschema.ValidationError):
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one round of chats."""

    schema: bool
    seconds: float
    tokens: int
    chats: int
    finished: int
    valid: int

    @property
    def rate(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds


def write_tokenizer(folder: Path, size: int) -> None:
    """A byte-level BPE of up to ``size`` tokens with a chat template, from the text of Python's library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # comes with transformers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    texts = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    made.train([str(one) for one in texts], trainer)
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[2], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


async def chat(client: httpx.AsyncClient, model: str, seed: int, *, schema: bool) -> Answer:
    """One answer; without a schema it is as long as it may be. Raises what HTTP raises."""
    words = " ".join(random.Random(seed).choices("abcdefgh", k=WORDS))
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"Describe person {seed} as JSON. {words}"}],
        "max_tokens": MOST_TOKENS,
        "temperature": 0,
    }
    if schema:
        named = {"name": "person", "schema": SCHEMA, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    else:
        body["ignore_eos"] = True
    response = await client.post("/v1/chat/completions", json=body)
    response.raise_for_status()
    found = response.json()
    choice = found["choices"][0]
    tokens = int(found["usage"]["completion_tokens"])
    return Answer(tokens, choice["finish_reason"] == "stop", choice["message"]["content"] or "")


async def measure(url: str, model: str, *, schema: bool, seed: int) -> Figures:
    """``TIMES`` times ``TOGETHER`` chats."""
    answers: list[Answer] = []
    async with httpx.AsyncClient(base_url=url, timeout=600.0) as client:
        started = time.perf_counter()
        for turn in range(TIMES):
            seeds = range(seed + turn * TOGETHER, seed + (turn + 1) * TOGETHER)
            answers += await asyncio.gather(*(chat(client, model, one, schema=schema) for one in seeds))
        seconds = time.perf_counter() - started
    return Figures(
        schema=schema,
        seconds=seconds,
        tokens=sum(one.tokens for one in answers),
        chats=len(answers),
        finished=sum(one.finished for one in answers),
        valid=sum(one.finished and one.valid for one in answers) if schema else 0,
    )


@contextmanager
def target(shape: Shape, given: argparse.Namespace) -> Iterator[str]:
    """The URL of the server to measure: the one named, or one of our own."""
    if given.url:
        yield given.url
        return
    with tempfile.TemporaryDirectory() as name:
        model = write_model(shape, Path(name))
        write_tokenizer(model, shape.vocabulary)
        arguments = ["--model-path", str(model), "--load-format", "dummy", "--dtype", "bfloat16"]
        with serving([*arguments, *given.server_arguments], log=Path(name) / "log") as server:
            yield server.url


def main() -> None:
    """Measure and print; asserts nothing."""
    options = parser(__doc__)
    options.add_argument("--shape", choices=sorted(SHAPES), default="0.5B")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--url", help="measure this server instead of starting one")
    options.add_argument("--model", default="default")
    options.add_argument("server_arguments", nargs="*", help="after --: more options for sglang-plug serve")
    given = options.parse_args()
    found: list[Figures] = []
    with target(SHAPES[given.shape], given) as url:
        for repeat in range(1 + given.repeats):  # the first one compiles the schema
            for schema in (False, True):
                found.append(asyncio.run(measure(url, given.model, schema=schema, seed=1000 * repeat)))
    found = found[2:]
    rows = [
        ("schema" if one.schema else "none", one.rate, one.tokens, one.seconds, one.finished, one.valid, one.chats)
        for one in found
    ]
    print(table(("constraint", "tokens/s", "tokens", "seconds", "finished", "valid", "of"), rows))
    write_json(given.json, [asdict(one) | {"rate": one.rate} for one in found])


if __name__ == "__main__":
    main()
