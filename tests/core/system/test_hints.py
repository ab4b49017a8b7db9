"""Hints in errors name only a few names, the most similar ones."""

from __future__ import annotations

from sglang_plug.system.hints import FEW, did_you_mean, nearest_names


def test_a_similar_name_is_suggested() -> None:
    assert nearest_names("lruu", ["lfu", "lru"], "eviction") == "did you mean 'lru'?"


def test_few_names_are_listed_in_their_order() -> None:
    assert nearest_names("zzz", ["b", "a", "b"], "eviction") == "known: b, a"
    assert nearest_names("zzz", [], "eviction") == "no eviction is declared"


def test_of_many_names_only_the_nearest_are_listed() -> None:
    names = [f"model-{number}" for number in range(300)]
    hint = nearest_names("zzz", [*names, "zz-other-name"], "model")
    assert hint.count(",") == FEW - 1 and "zz-other-name" in hint
    assert hint.startswith("the nearest model names are ") and hint.endswith(" (301 are known)")


def test_nothing_near_is_no_hint() -> None:
    assert did_you_mean("zzz", ["serve"]) == ""
    assert did_you_mean("srve", ["serve"]) == "; did you mean 'serve'?"


def test_an_abbreviation_gets_the_full_names() -> None:
    names = [
        "--set",
        "--schedule-policy",
        "--max-files",
        "--max-loras",
        "--max-states",
        "--max-total-tokens",
        "--max-x",
    ]
    assert did_you_mean("--sched", names) == "; did you mean '--schedule-policy'?"
    assert did_you_mean("--max_total_token", names) == "; did you mean '--max-total-tokens'?"
    assert did_you_mean("--max", names) == (
        "; did you mean one of '--max-files', '--max-loras', '--max-states', '--max-total-tokens'?"
    )
    assert did_you_mean("--", names) == ""
