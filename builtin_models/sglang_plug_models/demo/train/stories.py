"""A small story grammar: simple stories, poems and travel plans with varied sentences."""

from __future__ import annotations

import random

from countries import CAPITAL_KNOWN_FOR
from facts import NAMES

HEROES: dict[str, list[str]] = {
    "cat": ["small", "gray", "curious"],
    "dog": ["brown", "loyal", "happy"],
    "dragon": ["young", "green", "shy"],
    "robot": ["little", "silver", "kind"],
    "space explorer": ["brave", "young", "curious"],
    "princess": ["clever", "brave", "kind"],
    "wizard": ["old", "wise", "forgetful"],
    "farmer": ["poor", "kind", "old"],
    "mouse": ["tiny", "brave", "clever"],
    "fox": ["red", "clever", "lonely"],
    "bear": ["big", "gentle", "hungry"],
    "girl": ["little", "curious", "brave"],
    "boy": ["young", "quiet", "cheerful"],
    "knight": ["brave", "proud", "young"],
    "bird": ["blue", "small", "cheerful"],
    "sailor": ["old", "brave", "cheerful"],
    "rabbit": ["white", "quick", "shy"],
    "king": ["old", "wise", "lonely"],
    "elephant": ["big", "gentle", "wise"],
    "lion": ["strong", "proud", "lonely"],
    "programmer": ["young", "tired", "clever"],
    "teacher": ["kind", "young", "wise"],
    "child": ["small", "happy", "curious"],
}
PRONOUNS: dict[str, tuple[str, str]] = {
    "princess": ("she", "her"),
    "girl": ("she", "her"),
    "teacher": ("she", "her"),
    "boy": ("he", "his"),
    "king": ("he", "his"),
    "knight": ("he", "his"),
    "farmer": ("he", "his"),
    "wizard": ("he", "his"),
    "sailor": ("he", "his"),
    "space explorer": ("she", "her"),
    "programmer": ("she", "her"),
}
SETTINGS = [
    "in a quiet village",
    "near a deep forest",
    "by the sea",
    "on a green hill",
    "in a big city",
    "at the edge of a lake",
    "under a tall mountain",
    "in an old castle",
    "on a small island",
]
FINDS = [
    "an old map",
    "a golden key",
    "a strange door",
    "a shining stone",
    "a letter with no name",
    "a tiny lantern",
    "a silver bell",
    "a lost book",
]
SOUGHT = [
    "the hidden garden",
    "the last star",
    "the singing river",
    "a lost friend",
    "the old tower",
    "the sleeping giant",
    "the secret library",
    "the way home",
]
HELPERS = [
    "an owl",
    "a turtle",
    "an old woman",
    "a wise crow",
    "a friendly ghost",
    "a small frog",
    "a traveler",
]
TROUBLES = [
    "a storm came",
    "the path ended",
    "the bridge was broken",
    "the night was very dark",
    "the fog hid the road",
    "a wide river blocked the way",
]
LESSONS = [
    "that courage is quiet",
    "that friends matter more than gold",
    "that every journey ends at home",
    "that a kind word opens many doors",
    "that it is good to ask for help",
    "that small steps go far",
]
ENDINGS = [
    "And they lived happily ever after.",
    "And that was the end of the adventure.",
    "From that day on, {name} was never lonely again.",
    "That night, {name} slept very well.",
    "And if you listen, you can still hear the story today.",
]


def article(word: str) -> str:
    """The word with its indefinite article."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _beginning(rng: random.Random, opening: str, hero: str, trait: str, name: str, sought: str, find: str) -> str:
    """Return the hero, their search and their first find."""
    subject, own = PRONOUNS.get(hero, ("it", "its"))
    return (
        f"{opening}, {article(trait)} {hero} named {name} lived {rng.choice(SETTINGS)}. "
        + rng.choice(
            [
                f"Every morning, {name} looked at the sky and dreamed of {sought}.",
                f"{subject.capitalize()} had always wanted to see {sought}.",
                f"Nobody knew that {name} was looking for {sought}.",
            ]
        )
        + f" One day, {name} found {find}. "
        + rng.choice(
            [
                f'"This must be the sign," said {name}.',
                f"{subject.capitalize()} could not believe {own} eyes.",
                "It was warm, and it seemed to hum.",
            ]
        )
    )


def story(rng: random.Random, hero: str, paragraphs: int = 1, opening: str = "Once upon a time") -> str:
    """A story about one hero, in one to five paragraphs."""
    traits = HEROES.get(hero, ["small", "kind", "brave"])
    trait, name = rng.choice(traits), rng.choice(NAMES)
    subject, own = PRONOUNS.get(hero, ("it", "its"))
    cap = subject.capitalize()
    sought, find = rng.choice(SOUGHT), rng.choice(FINDS)
    parts = [_beginning(rng, opening, hero, trait, name, sought, find)]
    for index in range(max(paragraphs - 2, 0)):
        helper = rng.choice(HELPERS)
        link = ["So", "Then", "After many days", "At last"][min(index, 3)]
        parts.append(
            f"{link}, {name} walked on, and {rng.choice(TROUBLES)}. {cap} met {helper}, who asked, "
            f'"Where are you going?" "I am looking for {sought}," said {name}. '
            + rng.choice(
                [
                    f'"Then follow me," said the {helper.split(" ", 1)[1]}. Together they walked until the '
                    f"sun went down.",
                    "They shared some bread and talked until the stars came out.",
                    "They became good friends, and the road felt shorter.",
                ]
            )
        )
    middle = rng.choice(
        [
            f"{name} followed {own} heart and set out at once.",
            f"The way was long, and {rng.choice(TROUBLES)}, but {name} did not give up.",
            f"With the help of {rng.choice(HELPERS)}, {name} went on.",
        ]
    )
    end = f"{middle} In the end, {name} found {sought} and learned {rng.choice(LESSONS)}. " + rng.choice(
        ENDINGS
    ).format(name=name)
    if paragraphs == 1:
        return parts[0] + " " + end
    return "\n\n".join([*parts, end])


POEM_LINES = {
    "sea": [
        "The sea is wide, the sea is blue,",
        "it sings a song for me and you.",
        "The waves come in, the waves go out,",
        "and gulls above them fly about.",
    ],
    "moon": [
        "The moon is high, the night is deep,",
        "the little birds are all asleep.",
        "A silver light is on the hill,",
        "and all the world is calm and still.",
    ],
    "spring": [
        "The snow is gone, the grass is green,",
        "the finest spring I have ever seen.",
        "The flowers open one by one,",
        "and turn their faces to the sun.",
    ],
    "cat": [
        "My little cat sits by the door,",
        "then rolls around upon the floor.",
        "It chases shadows, light and small,",
        "and sleeps the longest of us all.",
    ],
    "love": [
        "A kind word said, a helping hand,",
        "are things that all can understand.",
        "And love is like an open door",
        "that leads to what we hoped for.",
    ],
}


def travel_plan(rng: random.Random, city: str) -> str:
    """A three day plan for one city with known sights."""
    sights = CAPITAL_KNOWN_FOR[city]
    lines = [
        f"Here is a travel plan for {city}:",
        "",
        f"Day 1: Visit {sights[0]} in the morning and {sights[1]} in the afternoon.",
        f"Day 2: See {sights[2]}, then have lunch in a small restaurant.",
        f"Day 3: Enjoy {sights[3]} and buy a small gift before you go home.",
    ]
    if rng.random() < 0.3:
        lines += ["", f"Have a good time in {city}!"]
    return "\n".join(lines)
