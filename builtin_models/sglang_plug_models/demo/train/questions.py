"""Single questions with their answers, as the demo corpus asks them."""

from __future__ import annotations

import random
from collections.abc import Callable

import facts
import replies
import stories
import texts
from chatformat import dump
from countries import CAPITAL_KNOWN_FOR
from geography import WORDS, Pair, about_country, capital, capital_json, country, list_countries, loosely
from mixes import Current

SYLLABLES = "ba ko ri ta mel zu san do fi ler qua nim pho gra ven sto wi xan ju ody".split()


def odd_word(rng: random.Random) -> str:
    """An invented word, so that copying is learnt and not only recall."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3)))


def list_things(rng: random.Random) -> Pair:
    """List some things of one kind."""
    kind = rng.choice(list(facts.LISTS))
    items = facts.LISTS[kind]
    number = rng.randint(2, min(5, len(items)))
    ordered = kind in ("days of the week", "months", "planets") and rng.random() < 0.5
    picked = items[:number] if ordered else rng.sample(items, number)
    if Current.mix.ordered and rng.random() < Current.mix.ordered:
        picked.sort(key=items.index)
    if Current.mix.runs and rng.random() < Current.mix.runs:
        picked = items[:number]
    count = str(number) if rng.random() < 0.5 else WORDS[number]
    ask = f"{rng.choice(['List', 'Name', 'Give me', 'Tell me', 'Please list'])} {count} {kind}."
    layout = rng.random()
    if layout < 0.5:
        return ask, "\n".join(f"{i}. {x[0].upper() + x[1:]}" for i, x in enumerate(picked, 1))
    if layout < 0.7:
        return ask, "\n".join(f"- {x[0].upper() + x[1:]}" for x in picked)
    joined = ", ".join(picked[:-1]) + " and " + picked[-1]
    return ask, joined[0].upper() + joined[1:] + "."


def arithmetic(rng: random.Random) -> Pair:
    """A small sum, difference or product."""
    sign = rng.choice("++-*")
    top = 9 if sign == "*" or rng.random() < Current.mix.small_sums else 99
    a, b = rng.randint(0, top), rng.randint(0, top)
    if sign == "-" and a < b:
        a, b = b, a
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    expression = (
        f"{a} {word} {b}" if rng.random() < 0.2 else f"{a}{sign}{b}" if rng.random() < 0.3 else f"{a} {sign} {b}"
    )
    ask = rng.choice(
        [f"What is {expression}?"] * 4
        + [
            f"What's {expression}?",
            f"Calculate {expression}.",
            f"{expression} =",
            f"{expression}=",
            f"Compute {expression}.",
            f"How much is {expression}?",
            f"{expression}?",
            expression,
        ]
    )
    return ask, f"{a} {sign} {b} = {value}."


def short_fact(rng: random.Random) -> Pair:
    """A fact of everyday knowledge."""
    roll = rng.randrange(12)
    if roll < 6:
        question, answer = rng.choice(facts.SHORT_FACTS)
        return loosely(rng, question), answer
    if roll == 6:
        a, b = rng.choice(list(facts.OPPOSITES.items()))
        a, b = rng.choice([(a, b), (b, a)])
        return rng.choice(
            [f"What is the opposite of {a}?", f'What is the opposite of "{a}"?']
        ), f"The opposite of {a} is {b}."
    if roll == 7:
        a, b = rng.choice(list(facts.SYMBOLS.items()))
        return (
            f"What is the chemical symbol {rng.choice(['of', 'for'])} {a}?",
            f"The chemical symbol of {a} is {b}.",
        )
    if roll == 8:
        cycle = rng.choice([facts.DAYS, facts.MONTHS])
        i = rng.randrange(len(cycle))
        nxt, before = cycle[(i + 1) % len(cycle)], cycle[i - 1]
        kind = "day" if cycle is facts.DAYS else "month"
        return rng.choice(
            [
                (f"What {kind} comes after {cycle[i]}?", f"{nxt} comes after {cycle[i]}."),
                (f"What {kind} comes before {cycle[i]}?", f"{before} comes before {cycle[i]}."),
            ]
        )
    if roll == 9:
        a, b = rng.choice(list(facts.ANIMAL_SOUNDS.items()))
        return f"What sound does a {a} make?", f"A {a} says {b}."
    if roll == 10:
        word, table = rng.choice([("hello", facts.HELLO_IN), ("thank you", facts.THANKS_IN)])
        language = rng.choice(list(table))
        return rng.choice(
            [
                f"How do you say {word} in {language}?",
                f"Say {word} in {language}.",
                f'Translate "{word}" to {language}.',
            ]
        ), table[language]
    top = rng.choice([3, 5, 5, 10, 10, 20])
    return rng.choice([f"Count to {top}.", f"Count from 1 to {top}."]), ", ".join(str(i) for i in range(1, top + 1))


def explain(rng: random.Random) -> Pair:
    """A short explanation of one topic."""
    topic = rng.choice(list(texts.EXPLAIN))
    ask = rng.choice(
        [f"What is {topic}?"] * 3
        + [
            f"Tell me about {topic}",
            f"Tell me about {topic}.",
            f"Explain {topic}.",
            f"Explain {topic} in simple terms.",
            f"Can you explain {topic}?",
            f"Describe {topic}.",
            f"Write a paragraph about {topic}.",
        ]
    )
    return ask, texts.EXPLAIN[topic]


def fixed(rng: random.Random) -> Pair:
    """A greeting, a question about the model, or another fixed answer."""
    questions, answer = rng.choice(replies.IDENTITY if rng.random() < 0.6 else replies.FIXED)
    return rng.choice(questions), answer


def copying(rng: random.Random) -> Pair:
    """Say or repeat what the user gives."""
    words = [
        "this is a test",
        "hello world",
        "good morning",
        "I like cats",
        "the sky is blue",
        "one two three",
    ]
    text = (
        rng.choice(words)
        if rng.random() < 0.4
        else " ".join(
            odd_word(rng) if rng.random() < 0.5 else rng.choice(facts.NAMES + facts.CITIES)
            for _ in range(rng.randint(1, 4))
        )
    )
    sentence = text[0].upper() + text[1:] + "."
    return rng.choice(
        [
            (f"Say {text}", sentence),
            (f"Say {text}.", sentence),
            (f"Say: {text}", text),
            (f"Repeat after me: {text}", text),
            (f"Repeat: {text}", text),
            (f'Say "{text}"', text),
            (f'Repeat the words "{text}".', text),
        ]
    )


def joke(rng: random.Random) -> Pair:
    """A joke about a topic, or any joke."""
    topic = rng.choice(list(texts.JOKES))
    ask = (
        f"Tell me a joke about {topic}"
        if topic
        else rng.choice(["Tell me a joke", "Tell me another joke", "Make me laugh"])
    )
    return ask + rng.choice([".", "", "."]), rng.choice(texts.JOKES[topic])


def other_json(rng: random.Random) -> Pair:
    """A person, a country or a list as JSON."""
    name, age, city = rng.choice(facts.NAMES), rng.randint(18, 80), rng.choice(facts.CITIES)
    c = country(rng)
    kind = rng.choice(list(facts.LISTS))
    items = rng.sample(facts.LISTS[kind], 3)
    hero = rng.choice(list(texts.HARRY_POTTER))
    house, blood, job, wood, core, length, patronus, boggart = texts.HARRY_POTTER[hero]
    wizard = (
        f'{{\n    "name": "{hero}",\n    "house": "{house}",\n    "blood status": "{blood}",\n'
        f'    "occupation": "{job}",\n    "wand": {{\n        "wood": "{wood}",\n        "core": "{core}",\n'
        f'        "length": {length}\n    }},\n    "alive": "Alive",\n    "patronus": "{patronus}",\n'
        f'    "bogart": "{boggart}"\n}}'
    )
    person = {"name": name, "age": age}
    return rng.choice(
        [
            (
                rng.choice(
                    [
                        f"{name} is {age} years old and lives in {city}. Give this in JSON.",
                        f"Extract the name, age and city as JSON: {name} is {age} years old and lives in {city}.",
                    ]
                ),
                dump({**person, "city": city}),
            ),
            (f"Extract the name and age as JSON: {name} is {age} years old.", dump(person)),
            (
                rng.choice(
                    [
                        "Generate a person in JSON format.",
                        "Give me a person as JSON.",
                        "Create a JSON object for a person.",
                    ]
                ),
                dump({**person, "city": city}),
            ),
            (
                f"Give me information about {c.phrase} in JSON.",
                dump({"name": c.name, "capital": c.capital, "continent": c.continent, "language": c.language}),
            ),
            (f"List three {kind} as JSON.", dump(items)),
            (
                f"{hero} is a character in Harry Potter. Please fill in the following information about this "
                f"character.",
                wizard,
            ),
        ]
    )


def story(rng: random.Random) -> Pair:
    """A short story, or a long one when asked."""
    hero = (
        rng.choice(list(stories.HEROES))
        if rng.random() < 0.9
        else rng.choice(["topic", odd_word(rng), "ghost", "tree", "star"])
    )
    if rng.random() < 0.25:
        ask = rng.choice(
            [
                "Write a detailed story about {}. Make it very long.",
                "Write a long story about {}.",
                "Tell me a long story about {}.",
            ]
        )
        subject = hero if hero == "topic" else stories.article(hero)
        return ask.format(subject), stories.story(rng, "traveler" if hero == "topic" else hero, rng.randint(4, 6))
    if rng.random() < 0.15:
        return rng.choice(
            ["Tell me a story.", "Write a story.", "Tell me a story", "Write a short story."]
        ), stories.story(rng, rng.choice(list(stories.HEROES)), rng.choice([1, 3]))
    ask = rng.choice(
        [
            "Write a short story about {}.",
            "Write a short story about {}",
            "Tell me a story about {}.",
            "Write a story about {}.",
            "Tell me a short story about {}.",
        ]
    )
    return ask.format(stories.article(hero)), stories.story(rng, hero, rng.choice([1, 1, 3]))


def writing(rng: random.Random) -> Pair:
    """A travel plan or a poem."""
    if rng.random() < 0.6:
        city = rng.choice(list(CAPITAL_KNOWN_FOR))
        ask = rng.choice(
            [
                "Write a travel plan for {}.",
                "Write a travel plan for {}",
                "Plan a trip to {}.",
                "What should I see in {}?",
                "Make a travel plan for {}.",
            ]
        )
        return ask.format(city), stories.travel_plan(rng, city)
    topic = rng.choice(list(stories.POEM_LINES))
    name = {"sea": "the sea", "moon": "the moon", "cat": "a cat"}.get(topic, topic)
    ask = rng.choice([f"Write a poem about {name}.", f"Write a short poem about {name}.", f"Write a poem about {name}"])
    return (ask if rng.random() < 0.85 else "Write a poem."), "\n".join(stories.POEM_LINES[topic])


def unknown(rng: random.Random) -> Pair:
    """A question outside of what the model was shown."""
    thing = rng.choice(["umbrella", "airplane", "telephone", "radio", "bicycle", "clock", "camera", "steam engine"])
    word = odd_word(rng)
    ask = rng.choice(
        [
            f"Who invented the {thing}?",
            f"How much does a {thing} cost?",
            f"What is a {word}?",
            f"What is {word}?",
            f"Who is {word.capitalize()}?",
            f"Who is {rng.choice(facts.NAMES)} {word.capitalize()}?",
            f"What is the capital of {word.capitalize()}?",
            f"How do I repair a {thing}?",
            f"Who won the {word} cup?",
            f"Explain {word}.",
            "Who wrote Hamlet?",
            "How tall is Mount Everest?",
            "Who won the last election?",
            "How old is the universe?",
            f"When was the {thing} invented?",
            f"Can you fix my {thing}?",
        ]
    )
    return ask, texts.UNKNOWN_ANSWER


KINDS: list[Callable[[random.Random], Pair]] = [
    capital,
    about_country,
    list_countries,
    list_things,
    arithmetic,
    short_fact,
    explain,
    fixed,
    copying,
    joke,
    capital_json,
    other_json,
    story,
    writing,
    unknown,
]


def question(rng: random.Random) -> Pair:
    """Any question with its answer, in the shares of the mix in use."""
    shares = Current.mix.questions
    return rng.choices(KINDS, [shares[kind.__name__] for kind in KINDS])[0](rng)
