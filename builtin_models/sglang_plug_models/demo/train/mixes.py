"""The mixes of the corpus: heavy on facts, even, heavy on what is learnt late, and on lists."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Mix:
    """The frequency of each kind of text; the fields name the generators' functions."""

    questions: dict[str, float]
    chats: dict[str, float]
    plain: tuple[float, ...]
    chat_share: float
    tool_share: float
    sums: tuple[int, int]
    ordered: float
    """The share of lists that keep the order of the tables, which makes them easier to learn."""
    runs: float = 0.0
    """The share of lists that are a run of the table, so that each item names the next."""
    small_sums: float = 0.35
    """The share of sums with one digit."""
    odd_tools: float = 0.0
    """The share of tools with invented names, so that names are copied and not guessed."""


MIXES: dict[str, Mix] = {
    "facts": Mix(
        questions={
            "capital": 30.0,
            "about_country": 4.0,
            "list_countries": 7.0,
            "list_things": 6.0,
            "arithmetic": 12.0,
            "short_fact": 9.0,
            "explain": 6.0,
            "fixed": 8.0,
            "copying": 5.0,
            "joke": 1.5,
            "capital_json": 5.0,
            "other_json": 4.0,
            "story": 5.0,
            "writing": 2.0,
            "unknown": 3.0,
        },
        chats={
            "single": 62.0,
            "one_word": 2.0,
            "follow_up": 8.0,
            "another_list": 3.0,
            "name_memory": 9.0,
            "several": 12.0,
            "rome": 0.8,
            "assistant_only": 1.2,
        },
        plain=(0.24, 0.34, 0.45, 0.55, 0.72, 0.90, 0.94, 0.96, 0.97),
        chat_share=0.68,
        tool_share=0.08,
        sums=(4, 12),
        ordered=0.0,
    ),
    "even": Mix(
        questions={
            "capital": 13.0,
            "about_country": 4.0,
            "list_countries": 9.0,
            "list_things": 8.0,
            "arithmetic": 16.0,
            "short_fact": 13.0,
            "explain": 8.0,
            "fixed": 9.0,
            "copying": 6.0,
            "joke": 2.0,
            "capital_json": 7.0,
            "other_json": 4.0,
            "story": 6.0,
            "writing": 3.0,
            "unknown": 3.0,
        },
        chats={
            "single": 62.0,
            "one_word": 2.0,
            "follow_up": 4.0,
            "another_list": 4.0,
            "name_memory": 10.0,
            "several": 10.0,
            "rome": 1.2,
            "assistant_only": 2.0,
        },
        plain=(0.10, 0.30, 0.40, 0.53, 0.70, 0.88, 0.93, 0.95, 0.96),
        chat_share=0.66,
        tool_share=0.12,
        sums=(8, 20),
        ordered=0.8,
    ),
    "skills": Mix(
        questions={
            "capital": 10.0,
            "about_country": 4.0,
            "list_countries": 8.0,
            "list_things": 14.0,
            "arithmetic": 22.0,
            "short_fact": 20.0,
            "explain": 7.0,
            "fixed": 8.0,
            "copying": 6.0,
            "joke": 4.0,
            "capital_json": 5.0,
            "other_json": 4.0,
            "story": 4.0,
            "writing": 2.0,
            "unknown": 2.0,
        },
        chats={
            "single": 62.0,
            "one_word": 2.0,
            "follow_up": 4.0,
            "another_list": 4.0,
            "name_memory": 10.0,
            "several": 10.0,
            "rome": 1.2,
            "assistant_only": 2.0,
        },
        plain=(0.08, 0.36, 0.44, 0.56, 0.72, 0.88, 0.93, 0.95, 0.96),
        chat_share=0.62,
        tool_share=0.20,
        sums=(12, 22),
        ordered=0.95,
        small_sums=0.5,
        odd_tools=0.4,
    ),
}
SKILLS = MIXES["skills"]
MIXES["lists"] = replace(
    SKILLS,
    questions={**SKILLS.questions, "capital": 12.0, "list_countries": 20.0},
    chats={**SKILLS.chats, "another_list": 7.0},
    plain=(0.08, 0.26, 0.34, 0.56, 0.72, 0.88, 0.93, 0.95, 0.96),
    chat_share=0.52,
    tool_share=0.28,
    odd_tools=0.6,
    runs=0.8,
)
MIXES["tools"] = replace(MIXES["lists"], tool_share=0.34, odd_tools=0.12)


class Current:
    """The mix in use; the generators read it, and training sets it once."""

    mix: Mix = MIXES["facts"]


def use(name: str) -> None:
    """Make a mix the one in use."""
    Current.mix = MIXES[name]
