from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from sglang_plug_backends.grammars.ebnf.rule_graph import leading_to_loops, reverse, settled

NAMES = "abcdef"
USES = st.fixed_dictionaries({name: st.sets(st.sampled_from(NAMES)) for name in NAMES})


def reached(uses: Mapping[str, set[str]], start: str) -> set[str]:
    """Return the rules reachable from ``start`` in one step or more."""
    result, open_ = set[str](), [start]
    while open_:
        new = uses[open_.pop()] - result
        result |= new
        open_ += new
    return result


@given(USES)
def test_rules_leading_to_loops_reach_a_recursive_rule(uses: dict[str, set[str]]) -> None:
    loops = {name for name in NAMES if name in reached(uses, name)}
    assert leading_to_loops(uses) == {name for name in NAMES if name in loops or reached(uses, name) & loops}


@given(USES)
def test_the_reverse_of_the_reverse_is_the_same(uses: dict[str, set[str]]) -> None:
    assert all(name in uses[user] for name, users in reverse(uses).items() for user in users)
    assert {name: set(used) for name, used in reverse(reverse(uses)).items()} == uses


@given(USES)
def test_a_value_settles_where_all_that_depends_on_it_has_seen_it(uses: dict[str, set[str]]) -> None:
    """The computed values are the distances to a rule without uses, which decrease along loops too."""

    def value(name: str, values: Mapping[str, int]) -> int:
        return min((values[used] + 1 for used in uses[name]), default=0)

    far = len(NAMES) + 1
    result = settled(uses, far, lambda name, known: min(value(name, known), far))
    assert result == {name: min(value(name, result), far) for name in NAMES}
    ends = {name for name in NAMES if not uses[name]}
    assert {name for name in NAMES if result[name] < far} == {
        name for name in NAMES if name in ends or reached(uses, name) & ends
    }


def test_a_long_chain_is_settled_in_few_steps() -> None:
    count, steps = 3000, 0
    uses = {str(at): {str(at + 1)} if at + 1 < count else set[str]() for at in range(count)}

    def value(name: str, values: Mapping[str, bool]) -> bool:
        nonlocal steps
        steps += 1
        return not uses[name] or any(values[used] for used in uses[name])

    assert all(settled(uses, False, value).values()) and steps <= 2 * count
