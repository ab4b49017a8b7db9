"""Questions about countries and capitals, with their answers."""

from __future__ import annotations

import random

import countries
from chatformat import dump
from countries import COUNTRIES, FAMOUS, Country
from mixes import Current

Pair = tuple[str, str]
BY_NAME: dict[str, Country] = {c.name: c for c in COUNTRIES}


def country(rng: random.Random) -> Country:
    """A country, the well-known ones more often."""
    return BY_NAME[rng.choice(FAMOUS)] if rng.random() < 0.35 else rng.choice(COUNTRIES)


def loosely(rng: random.Random, question: str) -> str:
    """The question as hurried people type it, now and then."""
    if rng.random() < 0.06:
        question = question.lower()
    if rng.random() < 0.06:
        question = question.rstrip("?.")
    return question


def capital(rng: random.Random) -> Pair:
    """Return the capital of a country, in one of many wordings."""
    c = country(rng)
    phrase = c.phrase
    if c.name in countries.ALIASES.values() and rng.random() < 0.3:
        phrase = "the " + rng.choice([k for k, v in countries.ALIASES.items() if v == c.name])
        phrase = phrase.replace("the Czechia", "Czechia")
    full = f"The capital of {phrase} is {c.capital}."
    roll = rng.random()
    if roll < 0.62:
        return loosely(rng, rng.choice(_questions(phrase))), full
    if roll < 0.70:
        ask = rng.choice(
            [
                f"Introduce the capital of {phrase}.",
                f"Please introduce the capital of {phrase}.",
                f"Introduce the capital of {phrase}",
                f"Tell me about the capital of {phrase}.",
                f"Describe the capital of {phrase}.",
            ]
        )
        return ask, full + " " + about_city(c)
    if roll < 0.78:
        ask = rng.choice(
            [
                f"{c.capital} is the capital of which country?",
                f"Which country has the capital {c.capital}?",
                f"What country is {c.capital} the capital of?",
            ]
        )
        return ask, f"{c.capital} is the capital of {c.phrase}."
    if roll < 0.88:
        return _yes_or_no(rng, c, phrase)
    if roll < 0.94:
        ask = rng.choice(
            [
                f"What is the capital of {phrase}? Answer in one word.",
                f"Capital of {phrase}, one word.",
                f"What is the capital of {phrase}? Answer with one word only.",
            ]
        )
        return ask, c.capital
    return f"Where is {c.capital}?", f"{c.capital} is the capital of {c.phrase}."


def _questions(phrase: str) -> list[str]:
    """Questions for a capital, the usual one more often than others."""
    return [f"What is the capital of {phrase}?"] * 6 + [
        f"What's the capital of {phrase}?",
        f"Which city is the capital of {phrase}?",
        f"Name the capital of {phrase}.",
        f"Tell me the capital of {phrase}.",
        f"What is the capital city of {phrase}?",
        f"The capital of {phrase} is",
        f"Capital of {phrase}?",
        f"What city is the capital of {phrase}?",
        f"Do you know the capital of {phrase}?",
        f"Please tell me the capital of {phrase}.",
        f"Can you tell me the capital of {phrase}?",
        f"{phrase[0].upper() + phrase[1:]}'s capital?",
        f"The capital city of {phrase} is",
        f"Give me the capital of {phrase}.",
    ]


def _yes_or_no(rng: random.Random, c: Country, phrase: str) -> Pair:
    """Ask whether a city is the capital, which it is about half of the times."""
    other = country(rng)
    wording = rng.choice(["Is {} the capital of {}?"])
    city = other.capital if rng.random() < 0.5 else c.capital
    ask = wording.format(city, phrase)
    if city == c.capital:
        return ask, f"Yes, {c.capital} is the capital of {phrase}."
    return ask, f"No, the capital of {phrase} is {c.capital}."


def about_city(c: Country) -> str:
    """One or two sentences about a capital."""
    if c.capital in countries.CAPITAL_KNOWN_FOR:
        known = countries.CAPITAL_KNOWN_FOR[c.capital]
        sights = f"{known[0]}, {known[1]} and {known[2]}"
        return f"{c.capital} is known for {sights}. Many people visit the city every year."
    return f"{c.capital} is a city in {c.continent}, and many people there speak {c.language}."


def about_country(rng: random.Random) -> Pair:
    """Describe where a country is and what is spoken there."""
    c = country(rng)
    name = c.phrase[0].upper() + c.phrase[1:]
    return rng.choice(
        [
            (f"Where is {c.phrase}?", f"{name} is in {c.continent}."),
            (f"On which continent is {c.phrase}?", f"{name} is in {c.continent}."),
            (f"What continent is {c.phrase} in?", f"{name} is in {c.continent}."),
            (
                f"What language do people speak in {c.phrase}?",
                f"Many people in {c.phrase} speak {c.language}.",
            ),
            (
                f"Tell me about {c.phrase}.",
                f"{name} is a country in {c.continent}. Its capital is {c.capital}, and many "
                f"people there speak {c.language}.",
            ),
            (f"Tell me about {c.capital}.", f"{c.capital} is the capital of {c.phrase}. {about_city(c)}"),
        ]
    )


def capital_list(rng: random.Random, number: int | None = None, pool: list[str] | None = None) -> tuple[int, str]:
    """A list of countries with their capitals, in one of three layouts."""
    number = number or rng.choice([3, 3, 3, 3, 2, 4, 5])
    names = rng.sample(pool or FAMOUS, number)
    if Current.mix.ordered and rng.random() < Current.mix.ordered:
        names.sort(key=FAMOUS.index)
    if Current.mix.runs and not pool and rng.random() < Current.mix.runs:
        first = 0 if rng.random() < 0.4 else rng.randrange(len(FAMOUS) - number)
        names = FAMOUS[first : first + number]
    picked = [BY_NAME[n] for n in names]
    intro = f"Here are {number} countries and their capitals:\n\n" if rng.random() < 0.7 else ""
    layout = rng.random()
    if layout < 0.75:
        rows = [f"{i}. {c.name} - {c.capital}" for i, c in enumerate(picked, 1)]
    elif layout < 0.9:
        rows = [f"- {c.name}: {c.capital}" for c in picked]
    else:
        rows = [f"{i}. Country: {c.name}\nCapital: {c.capital}" for i, c in enumerate(picked, 1)]
    return number, intro + "\n".join(rows)


WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}


def list_countries(rng: random.Random) -> Pair:
    """List some countries and their capitals."""
    number, answer = capital_list(rng)
    count = str(number) if rng.random() < 0.7 else WORDS[number]
    ask = rng.choice(
        [f"List {count} countries and their capitals."] * 4
        + [
            f"Please give me a list of {count} countries and their capitals.",
            f"Name {count} countries and their capitals.",
            f"Give me {count} countries and their capitals.",
            f"List {count} countries and their capitals",
            f"Please list {count} countries and their capitals.",
            f"Can you list {count} countries and their capitals?",
        ]
    )
    return ask, answer


def capital_json(rng: random.Random) -> Pair:
    """Facts about a capital as a JSON object."""
    c = BY_NAME[rng.choice(FAMOUS)] if rng.random() < 0.7 else country(rng)
    population = countries.CAPITAL_POPULATION.get(c.capital)
    where = f"the capital of {c.phrase}"
    if population and rng.random() < 0.6:
        ask = rng.choice(
            [
                f"Give me the information of {where} in the JSON format.",
                f"Please generate the information of {where} in the JSON format.",
                f"Generate the information of {where} in the JSON format.",
                f"Here is the information of {where} in the JSON format.\n",
                f"Return the information of {where} as JSON.",
                f"Give me information about {where} in JSON format.",
            ]
        )
        return ask, dump({"name": c.capital, "population": population})
    ask = rng.choice(
        [
            f"Give me {where} in JSON.",
            f"Give me {where} in JSON",
            f"Give me {where} in the JSON format.",
            f"What is {where}? Answer in JSON.",
            f"Return {where} as JSON.",
        ]
    )
    return ask, dump({"name": c.name, "capital": c.capital})
