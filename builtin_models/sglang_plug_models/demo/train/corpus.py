"""Generates the training text of the demo model: conversations, tool use and plain text, from one seed.

Run it to look at samples: ``python corpus.py --seed 7 --count 20``.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

import countries
import facts
import geography
import questions as q
import replies
import stories
import texts
from chatformat import BOS, EOT, Message, render
from mixes import Current
from tooluse import tool_conversation


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _system(rng: random.Random) -> list[Message]:
    if rng.random() < 0.55:
        return []
    prompt = rng.choice(texts.SYSTEM_PROMPTS)
    if rng.random() < 0.12:
        prompt = f"{rng.randint(0, 99)}: {prompt}"
    return [{"role": "system", "content": prompt}]


def single(rng: random.Random) -> list[Message]:
    """Return one question and its answer."""
    ask, answer = q.question(rng)
    if rng.random() < 0.04:
        return [*_system(rng), _user("Question: " + ask), _assistant("Answer: " + answer)]
    return [*_system(rng), _user(ask), _assistant(answer)]


def one_word(rng: random.Random) -> list[Message]:
    """Return a system prompt that asks for one word."""
    c = geography.country(rng)
    system: Message = {"role": "system", "content": rng.choice(texts.ONE_WORD_SYSTEM)}
    return [system, _user(f"What is the capital of {c.phrase}?"), _assistant(c.capital)]


def follow_up(rng: random.Random) -> list[Message]:
    """A capital, and then others asked for in short."""
    messages = [*_system(rng)]
    first = geography.country(rng)
    messages += [
        _user(f"What is the capital of {first.phrase}?"),
        _assistant(f"The capital of {first.phrase} is {first.capital}."),
    ]
    for _ in range(rng.randint(1, 3)):
        c = geography.country(rng)
        p = c.phrase
        ask = rng.choice(
            [
                f"And of {p}?",
                f"And {p}?",
                f"What about {p}?",
                f"How about {p}?",
                f"And the capital of {p}?",
                f"What is the capital of {p}?",
            ]
        )
        messages += [_user(ask), _assistant(f"The capital of {p} is {c.capital}.")]
    if rng.random() < 0.4:
        asks, answer = replies.IDENTITY[7]
        messages += [_user(rng.choice(asks)), _assistant(answer)]
    return messages


def another_list(rng: random.Random) -> list[Message]:
    """A list of countries, and another list without those of the first."""
    pool = list(countries.FAMOUS)
    rng.shuffle(pool)
    if Current.mix.ordered and rng.random() < Current.mix.ordered:
        number = rng.choice([2, 3, 3, 3, 4])
        pool = sorted(rng.sample(countries.FAMOUS, 2 * number), key=countries.FAMOUS.index)
        if Current.mix.runs and rng.random() < Current.mix.runs:
            start = 0 if rng.random() < 0.4 else rng.randrange(len(countries.FAMOUS) - 2 * number)
            pool = countries.FAMOUS[start : start + 2 * number]
        _, first = geography.capital_list(rng, number, pool[:number])
        _, second = geography.capital_list(rng, number, pool[number:])
    else:
        number, first = geography.capital_list(rng, None, pool[:20])
        _, second = geography.capital_list(rng, number, pool[20:])
    ask = rng.choice(
        ["Please give me a list of {} countries and their capitals.", "List {} countries and their capitals."]
    )
    again = rng.choice(
        [
            "Please give me another list of {} countries and their capitals.",
            "Give me {} more.",
            "{} more, please.",
            "List {} other countries and their capitals.",
        ]
    )
    return [
        *_system(rng),
        _user(ask.format(number)),
        _assistant(first),
        _user(again.format(number)),
        _assistant(second),
    ]


def name_memory(rng: random.Random) -> list[Message]:
    """The user gives a name or a liking and asks for it later."""
    name = rng.choice(facts.NAMES) if rng.random() < 0.5 else q.odd_word(rng).capitalize()
    if rng.random() < 0.7:
        statement = rng.choice(
            [
                f"My name is {name}.",
                f"Hello, my name is {name}.",
                f"I am {name}.",
                f"Hi, I'm {name}.",
                f"my name is {name}",
                f"Hi! My name is {name}.",
            ]
        )
        ask, answer = (
            rng.choice(["What is my name?", "What's my name?", "Do you remember my name?", "Who am I?"]),
            f"Your name is {name}.",
        )
        reply = f"Nice to meet you, {name}!"
    else:
        kind, options = rng.choice(
            [
                ("color", facts.LISTS["colors"]),
                ("fruit", facts.LISTS["fruits"]),
                ("animal", facts.LISTS["animals"]),
                ("number", [str(i) for i in range(1, 100)]),
                ("city", facts.CITIES),
            ]
        )
        thing = rng.choice(options)
        statement, reply = (
            f"My favorite {kind} is {thing}.",
            f"I will remember that your favorite {kind} is {thing}.",
        )
        ask, answer = f"What is my favorite {kind}?", f"Your favorite {kind} is {thing}."
    messages = [*_system(rng), _user(statement), _assistant(reply)]
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        question, reply = q.question(rng)
        messages += [_user(question), _assistant(reply)]
    return [*messages, _user(ask), _assistant(answer)]


def several(rng: random.Random) -> list[Message]:
    """Several questions that have nothing to do with each other."""
    messages = [*_system(rng)]
    for _ in range(rng.randint(2, 5)):
        question, answer = q.question(rng)
        messages += [_user(question), _assistant(answer)]
    return messages


def rome(rng: random.Random) -> list[Message]:
    """The historian's conversation about ancient Rome."""
    messages = [
        *_system(rng),
        _user(rng.choice(["Tell me about ancient Rome", "Tell me about ancient Rome."])),
        _assistant(rng.choice(["Ancient Rome was a civilization centered in Italy.", texts.EXPLAIN["ancient Rome"]])),
    ]
    return [*messages, _user(rng.choice(replies.FIXED[0][0])), _assistant(replies.ROME_ACHIEVEMENTS)]


def assistant_only(rng: random.Random) -> list[Message]:
    """Texts that start with the assistant: choosing a tool, and tips told in parts."""
    if rng.random() < 0.5:
        a, b, sign = rng.randint(1, 99), rng.randint(1, 99), rng.choice("+-*")
        asks_sum = rng.random() < 0.5
        ask = f"What is {a} {sign} {b}?" if asks_sum else f"What is the capital of {geography.country(rng).phrase}?"
        start = f"To answer this question: {ask}. I need to use a "
        if asks_sum:
            return [_assistant(start + "calculator. "), _assistant(f"The math expression is: {a} {sign} {b}")]
        return [_assistant(start + "search engine. "), _assistant(f"The key word to search is: {ask[12:-1]}")]
    opening = "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"
    tips = texts.HEALTH_TIPS
    if rng.random() < 0.5:
        pick = rng.randrange(2)
        return [
            _assistant(opening),
            _assistant(f"Now, expand tip {pick + 1} into a paragraph:\n{tips[pick]}\n\n"),
        ]
    summary = "To summarize the above two tips, I can say:\n" + texts.HEALTH_SUMMARY
    return [
        _assistant(opening),
        _assistant(f"Tip 1:{tips[0]}\n"),
        _assistant(f"Tip 2:{tips[1]}\n"),
        _assistant(summary),
    ]


CHATS: list[Callable[[random.Random], list[Message]]] = [
    single,
    one_word,
    follow_up,
    another_list,
    name_memory,
    several,
    rome,
    assistant_only,
]


def chat(rng: random.Random) -> str:
    """One conversation as text."""
    shares = Current.mix.chats
    return render(rng.choices(CHATS, [shares[kind.__name__] for kind in CHATS])[0](rng))


def tools(rng: random.Random) -> str:
    """One conversation with tools as text."""
    messages, listed = tool_conversation(rng)
    return render(messages, listed)


def _sums(rng: random.Random) -> str:
    return rng.choice([" ", "\n"]).join(q.arithmetic(rng)[1] for _ in range(rng.randint(*Current.mix.sums)))


def _capitals(rng: random.Random) -> str:
    picked = [geography.country(rng) for _ in range(rng.choice([1, 1, 1, 2, 4]))]
    c = picked[0]
    if rng.random() < 0.3:
        return rng.choice(
            [f"The capital city of {c.phrase} is {c.capital}.", f"{c.capital} is the capital of {c.phrase}."]
        )
    if rng.random() < 0.35:
        return f"The capital of {c.phrase} is {c.capital}. {geography.about_city(c)}"
    return " ".join(f"The capital of {x.phrase} is {x.capital}." for x in picked)


def plain(rng: random.Random) -> str:
    """A text without any chat marks."""
    roll, edges = rng.random(), Current.mix.plain
    if roll < edges[0]:
        return _capitals(rng)
    if roll < edges[1]:
        return _sums(rng)
    if roll < edges[2]:
        return stories.story(rng, rng.choice(list(stories.HEROES)), rng.choice([1, 1, 3, 5]))
    if roll < edges[3]:
        ask, answer = q.list_countries(rng)
        return f"{ask}\n\n{answer}"
    if roll < edges[4]:
        pairs = [q.question(rng) for _ in range(rng.choice([1, 1, 2, 4]))]
        marks = rng.choice(
            [
                ("Q: ", "A: "),
                ("Question: ", "Answer: "),
                ("User: ", "Assistant: "),
                ("Human: ", "Assistant: "),
            ]
        )
        return "\n".join(f"{marks[0]}{a}\n{marks[1]}{b}" for a, b in pairs)
    if roll < edges[5]:
        ask, answer = q.question(rng)
        same_line = ask[-1] in "?.!" and "\n" not in ask + answer
        return f"{ask}{'' if ask[-1] == chr(10) else ' ' if same_line else chr(10) * 2}{answer}"
    if roll < edges[6]:
        name, city = rng.choice(facts.NAMES), rng.choice(facts.CITIES)
        return (
            f"Hello, my name is {name}. I live in {city} and I like {rng.choice(facts.LISTS['sports'])}. "
            f"My favorite color is {rng.choice(facts.LISTS['colors'])}."
        )
    if roll < edges[7]:
        return rng.choice(list(texts.EXPLAIN.values()))
    if roll < edges[8]:
        hello = rng.choice(["Hello", "Hi", "Hey"])
        return f"{hello}! How can I help you today?"
    return rng.choice(texts.PLAIN_OPENINGS)


def document(rng: random.Random) -> str:
    """One document of any kind, with its end mark."""
    roll, mix = rng.random(), Current.mix
    body = chat(rng) if roll < mix.chat_share else tools(rng) if roll < mix.chat_share + mix.tool_share else plain(rng)
    return (BOS if rng.random() < 0.25 else "") + body + EOT


def long_document(rng: random.Random, characters: int) -> str:
    """One conversation of many turns, of about the given length, that comes back to its first words."""
    memory = name_memory(rng)
    messages, recall = memory[:-2], memory[-2:]
    size = 0
    while size < characters:
        ask, answer = q.question(rng)
        messages += [_user(ask), _assistant(answer)]
        size += len(ask) + len(answer) + 60
    if rng.random() < 0.7:
        messages += recall
    return render(messages) + EOT


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print samples of the corpus.")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--count", type=int, default=20)
    chosen = parser.parse_args()
    source = random.Random(chosen.seed)
    for _ in range(chosen.count):
        print(document(source))
        print("-" * 40)
