"""Workload W5: chats whose answers must follow a JSON schema, compared with unconstrained ones.

Run as ``python -m benchmarks.chats``. Eight chats at once, three times, at most 96 tokens each, random weights and a
tokenizer that is made on the spot, so the text is nonsense; the schema bounds every part, so that nonsense can finish.
Schema and no schema alternate in one run. Reported are output tokens per second, and how many answers were finished and
valid. With ``--url`` any server with an OpenAI-compatible API is measured in the same way.
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

from benchmarks.common.models import SHAPES, Shape, write_model
from benchmarks.common.report import parser, table, write_json
from benchmarks.common.server import serving

TOGETHER, TIMES, MAX_TOKENS = 8, 3, 96
WORDS = 20
"""Words of each question after its first sentence, which make questions distinct."""
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
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one chat."""

    tokens: int
    finished: bool
    text: str

    @property
    def valid(self) -> bool:
        """Return True if the answer matches the schema."""
        import jsonschema  # jsonschema is a test dependency

        try:
            jsonschema.validate(json.loads(self.text), SCHEMA)
        except (ValueError, jsonschema.ValidationError):
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one round of chats."""

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
    """Write a byte-level BPE of up to ``size`` tokens with a chat template, trained on Python's library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # comes with transformers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    texts = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenizer.train([str(text) for text in texts], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[2], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


async def chat(client: httpx.AsyncClient, model: str, seed: int, *, schema: bool) -> Answer:
    """Return one answer; without a schema it has the maximum length. Raises HTTP errors."""
    words = " ".join(random.Random(seed).choices("abcdefgh", k=WORDS))
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"Describe person {seed} as JSON. {words}"}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    if schema:
        named = {"name": "person", "schema": SCHEMA, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    else:
        body["ignore_eos"] = True
    response = await client.post("/v1/chat/completions", json=body)
    response.raise_for_status()
    result = response.json()
    choice = result["choices"][0]
    tokens = int(result["usage"]["completion_tokens"])
    return Answer(tokens, choice["finish_reason"] == "stop", choice["message"]["content"] or "")


async def measure(url: str, model: str, *, schema: bool, seed: int) -> Figures:
    """Run ``TIMES`` times ``TOGETHER`` chats."""
    answers: list[Answer] = []
    async with httpx.AsyncClient(base_url=url, timeout=600.0) as client:
        started = time.perf_counter()
        for turn in range(TIMES):
            seeds = range(seed + turn * TOGETHER, seed + (turn + 1) * TOGETHER)
            answers += await asyncio.gather(*(chat(client, model, item, schema=schema) for item in seeds))
        seconds = time.perf_counter() - started
    return Figures(
        schema=schema,
        seconds=seconds,
        tokens=sum(answer.tokens for answer in answers),
        chats=len(answers),
        finished=sum(answer.finished for answer in answers),
        valid=sum(answer.finished and answer.valid for answer in answers) if schema else 0,
    )


@contextmanager
def target(shape: Shape, args: argparse.Namespace) -> Iterator[str]:
    """Yield the URL of the server to measure: the given one, or one of our own."""
    if args.url:
        yield args.url
        return
    with tempfile.TemporaryDirectory() as name:
        model = write_model(shape, Path(name))
        write_tokenizer(model, shape.vocabulary)
        arguments = ["--model-path", str(model), "--load-format", "dummy", "--dtype", "bfloat16"]
        with serving([*arguments, *args.server_arguments], log=Path(name) / "log") as server:
            yield server.url


def main() -> None:
    """Measure and print; asserts nothing."""
    options = parser(__doc__)
    options.add_argument("--shape", choices=sorted(SHAPES), default="0.5B")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--url", help="measure this server instead of starting one")
    options.add_argument("--model", default="default")
    options.add_argument("server_arguments", nargs="*", help="after --: more options for sglang-plug serve")
    args = options.parse_args()
    results: list[Figures] = []
    with target(SHAPES[args.shape], args) as url:
        for repeat in range(1 + args.repeats):  # the first one compiles the schema
            for schema in (False, True):
                results.append(asyncio.run(measure(url, args.model, schema=schema, seed=1000 * repeat)))
    results = results[2:]
    rows = [
        (
            "schema" if result.schema else "none",
            result.rate,
            result.tokens,
            result.seconds,
            result.finished,
            result.valid,
            result.chats,
        )
        for result in results
    ]
    print(table(("constraint", "tokens/s", "tokens", "seconds", "finished", "valid", "of"), rows))
    write_json(args.json, [asdict(result) | {"rate": result.rate} for result in results])


if __name__ == "__main__":
    main()
