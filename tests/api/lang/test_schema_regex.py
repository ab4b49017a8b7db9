"""Regular expressions of schemas match exactly the documents that the schema allows."""

from __future__ import annotations

import datetime
import json
import re
import uuid
from enum import StrEnum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from sglang_plug_lang.srt.constrained.outlines_backend import build_regex_from_object


class Weapon(StrEnum):
    SWORD = "sword"
    LONG = "a-x (1.5)"


class Item(BaseModel):
    weight: float = 1.0
    owner: str | None = None


class Wizard(BaseModel):
    name: str
    age: int
    weapon: Weapon
    items: list[Item] = Field(max_length=3)
    kind: Literal["good", 3] = "good"
    tags: dict[str, bool] = {}
    entry: tuple[int, str] = (1, "a")


ITEMS = st.builds(Item, weight=st.floats(allow_nan=False, allow_infinity=False), owner=st.none() | st.text())
WIZARDS = st.builds(Wizard, items=st.lists(ITEMS, max_size=3))


@given(WIZARDS)
def test_every_instance_matches(wizard: Wizard) -> None:
    regex = build_regex_from_object(Wizard)
    assert re.fullmatch(regex, json.dumps(wizard.model_dump(mode="json")))
    assert re.fullmatch(regex, json.dumps(wizard.model_dump(mode="json"), separators=(",", ":")))


GOOD: dict[str, Any] = {"name": "a", "age": 1, "weapon": "sword", "items": []}


@pytest.mark.parametrize(
    "changes",
    [
        {"age": 1.5},
        {"age": "1"},
        {"weapon": "axe"},
        {"items": [{}] * 4},
        {"items": [1]},
        {"items": [{"weight": "1"}]},
        {"tags": {"a": 1}},
        {"entry": [1]},
        {"kind": "3"},
        {"more": 1},
        {"name": None},
    ],
    ids=str,
)
def test_what_the_schema_refuses_does_not_match(changes: Any) -> None:
    regex = build_regex_from_object(Wizard.model_json_schema())
    assert re.fullmatch(regex, json.dumps(GOOD))
    assert not re.fullmatch(regex, json.dumps({**GOOD, **changes}))
    assert not re.fullmatch(regex, json.dumps({name: GOOD[name] for name in ("name", "age", "items")}))


@given(st.sets(st.sampled_from("abcd")))
def test_optional_properties_may_be_absent(present: set[str]) -> None:
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in "abcd"}}
    text = json.dumps({name: None for name in sorted(present)})
    assert re.fullmatch(build_regex_from_object(schema), text)
    required = re.fullmatch(build_regex_from_object({**schema, "required": ["c"]}), text)
    assert bool(required) == ("c" in present)
    assert not re.fullmatch(build_regex_from_object(schema), text.replace("}", ",}"))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 1, "maxLength": 2}, ['"a"', r'"\""'], ['""', '"abc"', '"""']),
        ({"type": "string", "pattern": "^a+$"}, ['"aa"'], ['"ab"', '""']),
        ({"type": "string", "pattern": "a"}, ['"xay"'], ['"x"']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-13-01"', '"today"']),
        ({"type": ["integer", "null"]}, ["0", "-12", "null"], ["01", "true", "1.0"]),
        ({"type": "number"}, ["1", "-0.5", "1e9"], [".5", "1.", "+1"]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, ["[1, 2]", "[1,2,3]"], ["[1]", "[]"]),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 0}, ["[]"], ["[1]"]),
        ({"const": "a|b"}, ['"a|b"'], ['"a', 'b"']),
        ({"allOf": [{"type": "boolean"}]}, ["true"], ["1"]),
    ],
    ids=str,
)
def test_keywords(schema: Any, good: list[str], bad: list[str]) -> None:
    regex = build_regex_from_object(json.dumps(schema))
    assert [text for text in good if not re.fullmatch(regex, text)] == []
    assert [text for text in bad if re.fullmatch(regex, text)] == []


def test_values_of_formats() -> None:
    class Event(BaseModel):
        id: uuid.UUID
        at: datetime.datetime
        day: datetime.date

    event = Event(id=uuid.uuid4(), at=datetime.datetime.now(datetime.UTC), day=datetime.date(2024, 2, 29))
    assert re.fullmatch(build_regex_from_object(Event), event.model_dump_json())


def test_whitespace() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}
    assert re.fullmatch(build_regex_from_object(schema, whitespace_pattern=r"[\n ]*"), '{\n  "a":  null\n}')
    assert not re.fullmatch(build_regex_from_object(schema, whitespace_pattern=""), '{ "a": null}')


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}, "contains itself"),
        ({}, "type None"),
        ({"type": "object"}, "schema None"),
        ({"const": [1]}, "only scalars"),
        ({"$ref": "http://example.com/a"}, "out of the schema"),
    ],
    ids=str,
)
def test_what_has_no_regular_expression_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_regex_from_object(schema)
