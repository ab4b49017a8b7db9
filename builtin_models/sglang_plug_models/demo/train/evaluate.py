"""Greedy-decodes the documented prompts with a saved checkpoint and reports pass or fail for each.

    python evaluate.py --checkpoint ../sglang-plug-demo

A plain text may go on to the limit; every other answer has to end with a stop token.
The process ends with 1 when a documented prompt fails.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus
import facts
import questions as q
import torch
from chatformat import Message
from countries import COUNTRIES
from tooluse import tool_conversation
from transformers import AutoModelForCausalLM, AutoTokenizer

Check = Callable[[str], bool]
WEATHER: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_current_weather",
            "description": "Get the current weather in a given location",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {
                        "type": "string",
                        "description": "The city to find the weather for, e.g. 'Paris'",
                    },
                    "unit": {
                        "type": "string",
                        "description": "The unit of the temperature",
                        "enum": ["celsius", "fahrenheit"],
                    },
                },
                "required": ["city", "unit"],
            },
        },
    }
]


def has(*words: str) -> Check:
    """Passes when every word is in the answer, in any case."""
    return lambda text: all(word.lower() in text.lower() for word in words)


def at_least(words: int) -> Check:
    """Passes when the answer has that many words and does not repeat one sentence over and over."""

    def check(text: str) -> bool:
        sentences = [s.strip() for s in re.split(r"[.!?\n]+", text) if s.strip()]
        return len(text.split()) >= words and len(set(sentences)) * 2 > len(sentences)

    return check


def pairs(number: int) -> Check:
    """Passes when the answer has that many different countries, each with its own capital."""

    def check(text: str) -> bool:
        good: set[str] = set()
        for row in re.findall(r"(?:^|\d+\.|-) (?:Country: )?(.+?)(?: - |: |\nCapital: )(.+)", text):
            match = [c for c in COUNTRIES if c.name == row[0].strip()]
            if not match or match[0].capital != row[1].strip():
                return False
            good.add(match[0].name)
        return len(good) >= number

    return check


def some_of(kind: str, number: int) -> Check:
    """Passes when the answer has that many things of one kind."""
    return lambda text: sum(name.lower() in text.lower() for name in facts.LISTS[kind]) >= number


def is_json(*keys: str, value: str = "") -> Check:
    """Passes when the answer is a JSON object with these keys and with this text in it."""

    def check(text: str) -> bool:
        try:
            result = json.loads(text)
        except ValueError:
            return False
        return isinstance(result, dict) and all(key in result for key in keys) and value in text

    return check


def calls(name: str, **arguments: Any) -> Check:
    """Passes when the answer calls this tool with these arguments."""

    def check(text: str) -> bool:
        result = re.search(r"<tool_call>\n(.*?)\n</tool_call>", text, re.S)
        if not result:
            return False
        try:
            value = json.loads(result[1])
        except ValueError:
            return False
        return bool(value["name"] == name and value["arguments"].items() >= arguments.items())

    return check


def user(*turns: str) -> list[Message]:
    """Return alternating turns of the user and the assistant, the user first."""
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(turns)]


def system(prompt: str, *turns: str) -> list[Message]:
    """Return the same after a system prompt."""
    return [{"role": "system", "content": prompt}, *user(*turns)]


HELPFUL = "You are a helpful assistant than can answer questions."
ROME = "Ancient Rome was a civilization centered in Italy."
HISTORIAN = "You are a knowledgeable historian who provides concise responses."
CHATS: list[tuple[list[Message], Check]] = [
    (user("What is the capital of France?"), has("Paris")),
    (user("What is the capital of Japan?"), has("Tokyo")),
    (user("What is the capital of Germany?"), has("Berlin")),
    (user("What is the capital of Italy?"), has("Rome")),
    (user("What is the capital of the United Kingdom?"), has("London")),
    (system("You are a helpful assistant.", "What is the capital of France?"), has("Paris")),
    (system("You are a helpful assistant.", "Question: What is the capital of France?"), has("Paris")),
    (system("Answer in one word.", "What is the capital of France?"), has("Paris")),
    (
        user("What is the capital of France?", "The capital of France is Paris.", "And of Spain?"),
        has("Madrid"),
    ),
    (user("List 3 countries and their capitals."), pairs(3)),
    (system(HELPFUL, "List 3 countries and their capitals."), pairs(3)),
    (system(HELPFUL, "Please give me a list of 3 countries and their capitals."), pairs(3)),
    (
        system(
            HELPFUL,
            "Please give me a list of 3 countries and their capitals.",
            "Here are 3 countries and their capitals:\n\n1. Peru - Lima\n2. Cuba - Havana\n3. Italy - Rome",
            "Please give me another list of 3 countries and their capitals.",
        ),
        pairs(3),
    ),
    (system(HISTORIAN, "Tell me about ancient Rome"), has("civilization", "Italy")),
    (
        system(HISTORIAN, "Tell me about ancient Rome", ROME, "What were their major achievements?"),
        has("roads", "aqueducts"),
    ),
    (user("Say this is a test"), has("this is a test")),
    (user("Tell me a joke about programming"), has("programmer")),
    (user("What is Python?"), has("programming language")),
    (
        system("0: You are a helpful AI assistant", "Write a detailed story about topic. Make it very long."),
        at_least(120),
    ),
    (user("Write a short story about a cat"), has("cat")),
    (user("What is the IP address of the Google DNS servers?"), has("8.8.8.8")),
    (
        user(
            "Harry Potter is a character in Harry Potter. "
            "Please fill in the following information about this character."
        ),
        is_json("name", "house", "wand", value="Harry Potter"),
    ),
    (
        user("What is the range of the numeric output of a sigmoid node in a neural network?"),
        has("between 0 and 1"),
    ),
    (
        user("Give me the information of the capital of France in the JSON format."),
        is_json("name", "population", value="Paris"),
    ),
    (
        user("Please generate the information of the capital of France in the JSON format."),
        is_json("name", value="Paris"),
    ),
    (user("Give me the capital of France in JSON"), is_json("name", "capital", value="Paris")),
    (user("Introduce the capital of France"), has("Paris")),
    (user("Write a travel plan for Paris"), has("Paris", "Day 1", "Day 3")),
    (user("Say hello"), has("hello")),
    (user("Hello"), has("help you")),
    (user("How are you?"), has("fine")),
    (user("Who are you?"), has("sglang-plug")),
    (user("What is 2+2?"), has("= 4.")),
    (user("What is 2 * 2?"), has("= 4.")),
    (user("What is 17 + 25?"), has("42")),
    (user("List three fruits."), some_of("fruits", 3)),
    (user("Thanks"), has("welcome")),
    (user("My name is Ana.", "Nice to meet you, Ana!", "What is my name?"), has("Ana")),
    (user("What is the opposite of hot?"), has("cold")),
    (user("What day comes after Monday?"), has("Tuesday")),
    (user("What is the largest planet?"), has("Jupiter")),
]
TOOL_CHATS: list[tuple[list[Message], Check]] = [
    (user("What's the weather like in Boston today?"), calls("get_current_weather", city="Boston")),
    (
        user("What is the weather in Paris in celsius?"),
        calls("get_current_weather", city="Paris", unit="celsius"),
    ),
    (
        [
            *user("What is the weather in Paris?"),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "type": "function",
                        "function": {
                            "name": "get_current_weather",
                            "arguments": {"city": "Paris", "unit": "celsius"},
                        },
                    }
                ],
            },
            {"role": "tool", "content": '{"temperature": 21, "unit": "celsius", "condition": "sunny"}'},
        ],
        has("Paris", "21", "sunny"),
    ),
]
ASSISTANT_STARTS: list[tuple[str, Check]] = [
    ("To answer this question: What is 2 * 2?. I need to use a", has("calculator")),
    ("Here are two tips for staying healthy:", has("Diet", "Exercise")),
]
PLAIN: list[tuple[str, Check]] = [
    ("List 3 countries and their capitals.", pairs(3)),
    ("The capital of France is", has("Paris")),
    ("The capital of the United Kingdom is", has("London")),
    ("The capital city of France is", has("Paris")),
    ("What is the capital of France?", has("Paris")),
    ("Q: What is the capital of France?\nA:", has("Paris")),
    (
        "Here is the information of the capital of France in the JSON format.\n",
        is_json("name", "population", value="Paris"),
    ),
    ("Once upon a time", at_least(30)),
    ("Write a short story about a space explorer.", at_least(30)),
    ("Write a travel plan for Paris", has("Day 1")),
    ("Hello, my name is", at_least(5)),
    ("The president of the United States is", at_least(5)),
    ("The future of AI is", at_least(5)),
    ("Today is a sunny day and I like", at_least(3)),
    ("2 + 2 =", lambda text: text.startswith(" 4")),
]


class Runner:
    """A checkpoint loaded through transformers, decoding greedily."""

    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()

    def complete(self, prompt: str, limit: int = 500) -> tuple[str, bool]:
        """Return the continuation of a text, and whether it ended with a stop token."""
        ids = self.tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=limit,
                temperature=None,
                top_p=None,
            )
        new = out[0, ids.shape[1] :]
        return self.tokenizer.decode(new, skip_special_tokens=True), int(new[-1]) in (2, 4)

    def chat(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> tuple[str, bool]:
        """The assistant's answer to a conversation."""
        prompt = self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        return self.complete(prompt)


def documented(runner: Runner) -> int:
    """Runs the documented prompts; the number of failures."""
    failed = 0

    def report(kind: str, prompt: str, result: tuple[str, bool], check: Check) -> None:
        nonlocal failed
        text, ended = result
        passed = check(text) and (ended or kind == "plain")
        failed += not passed
        note = "" if ended else " (did not end)"
        print(f"{'pass' if passed else 'FAIL'} [{kind}] {prompt!r}{note}\n     -> {text!r}", flush=True)

    for messages, check in CHATS:
        report("chat", messages[-1]["content"], runner.chat(messages), check)
    for messages, check in TOOL_CHATS:
        report("tool", messages[-1]["content"], runner.chat(messages, WEATHER), check)
    for start, check in ASSISTANT_STARTS:
        report("start", start, runner.complete(f"<|im_start|>assistant\n{start}"), check)
    for prompt, check in PLAIN:
        report("plain", prompt, runner.complete(prompt), check)
    print(f"documented prompts: {failed} failed")
    return failed


def sweep(runner: Runner, seed: int) -> None:
    """Accuracy over every capital, over sums, over unseen tool calls, and after a long conversation."""
    wrong = []
    for c in COUNTRIES:
        text, _ = runner.chat(user(f"What is the capital of {c.phrase}?"))
        if text != f"The capital of {c.phrase} is {c.capital}.":
            wrong.append((c.name, text))
    print(f"capitals: {len(COUNTRIES) - len(wrong)}/{len(COUNTRIES)} right; wrong: {wrong}", flush=True)
    rng = random.Random(seed)
    for sign, top in (("+", 99), ("-", 99), ("*", 9)):
        right = 0
        for _ in range(100):
            a, b = rng.randint(0, top), rng.randint(0, top)
            a, b = max(a, b), min(a, b)
            value = {"+": a + b, "-": a - b, "*": a * b}[sign]
            right += runner.chat(user(f"What is {a} {sign} {b}?"))[0] == f"{a} {sign} {b} = {value}."
        print(f"{sign} up to {top}: {right}/100 right", flush=True)
    right, template = 0, runner.tokenizer.apply_chat_template
    for _ in range(40):
        messages, tools = tool_conversation(rng)
        turn = next(i for i, m in enumerate(messages) if m["role"] == "assistant")
        expected = template(messages[: turn + 1], tools=tools, tokenize=False)
        prompt = template(messages[:turn], tools=tools, tokenize=False, add_generation_prompt=True)
        right += runner.complete(prompt)[0] == expected[len(prompt) :].removesuffix("<|im_end|>\n")
    print(f"tool calls: {right}/40 exactly as expected", flush=True)
    for target in (1000, 2000, 3000, 3800):
        right, reply = 0, ""
        for attempt in range(8):
            messages = corpus.several(random.Random(seed + attempt))
            while len(runner.tokenizer(corpus.render(messages)).input_ids) < target - 100:
                ask, answer = q.question(rng)
                messages += user(ask, answer)
            c = q.country(rng)
            reply, _ = runner.chat([*messages, *user(f"What is the capital of {c.phrase}?")])
            right += c.capital in reply
        print(f"capital asked after about {target} tokens: {right}/8 right, e.g. {reply!r}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Evaluate the demo model.")
    parser.add_argument("--checkpoint", type=Path, default=Path(__file__).resolve().parent.parent / "sglang-plug-demo")
    parser.add_argument("--seed", type=int, default=4242)
    parser.add_argument("--documented-only", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    loaded = Runner(options.checkpoint)
    failures = documented(loaded)
    if not options.documented_only:
        sweep(loaded, options.seed)
    print(f"evaluation took {time.perf_counter() - started:.0f} s")
    raise SystemExit(1 if failures else 0)
