"""Does a parser of outputs say the same however an output is cut, and nothing that contradicts itself?"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

from sglang_plug.parsers import CallArguments, CallEnd, CallStart, Event, OutputParser, Reasoning, Text, joined
from sglang_plug.plugins import PluginError, Plugins

KINDS = ("tool-parser", "reasoning-parser")
CUTS = 8
"""Random ways of cutting each output."""
ANY_TEXT = ("", " ", "Hello.", "\n\n", "{", '{"a": [1, "}"]}', "<", "<a></a>", "[f(x=1)]", "é漢🙂", "a\x00b")


def check_output_parser(
    name_or_class: str | type[OutputParser], outputs: Sequence[str] = (), *, calls: Sequence[str] = ()
) -> None:
    """Feed a parser texts that keep its format and texts that do not, whole and cut in many ways.

    Args:
        name_or_class: the name a plugin declared for a parser of calls or of reasoning, ``KIND:NAME`` where it is one
            of both kinds, or the class itself.
        outputs: texts in its format, whole or broken off.
        calls: those of them, or others, in which every call is whole: its arguments must be a JSON object.

    Raises:
        AssertionError: names the first output that fails, how it was cut, and what was wrong.
        PluginError: no plugin, or more than one, declares the name.
    """
    parser = name_or_class if isinstance(name_or_class, type) else _declared(name_or_class)
    for output in (*outputs, *calls, *ANY_TEXT):
        whole = _read(parser, [output])
        _check(whole, f"{parser.__name__} fails {output!r}", whole_calls=output in calls)
        for pieces in _cut(output):
            found = _read(parser, pieces)
            assert found == whole, f"{parser.__name__} fails {output!r}: cut as {pieces} it is {found}, whole {whole}"


def _declared(name: str) -> type[OutputParser]:
    plugins = Plugins.discover()
    found = [one for kind in KINDS for one in plugins.all(kind) if name in (one.spec.name, one.key)]
    if len(found) != 1:
        raise PluginError(f"{name!r} is declared for {len(found)} kinds of parsers; write KIND:NAME, or give the class")
    parser: type[OutputParser] = found[0].load(OutputParser)
    return parser


def _read(parser: type[OutputParser], pieces: Sequence[str]) -> list[Event]:
    one, found = parser(), list[Event]()
    for number, events in enumerate(
        [*((lambda piece=piece: one.feed(piece)) for piece in pieces), one.finish], start=1
    ):
        try:
            given = events()
        except Exception as error:
            raise AssertionError(
                f"{parser.__name__} fails {pieces}: raised {type(error).__name__}: {error} in call {number}"
            ) from error
        assert isinstance(given, list), f"{parser.__name__} fails {pieces}: gave {type(given).__name__}, not a list"
        found += given
    return joined(found)


def _check(events: Sequence[Event], where: str, *, whole_calls: bool) -> None:
    """Calls begin, go on and end in order, counted from 0."""
    begun, open_call = 0, None
    arguments: dict[int, str] = {}
    for event in events:
        match event:
            case CallStart(index, name):
                assert index == begun and open_call is None, f"{where}: call {index} begins, {begun} is next"
                assert name, f"{where}: call {index} has no name"
                begun, open_call, arguments[index] = begun + 1, index, ""
            case CallArguments(index, text):
                assert index == open_call, f"{where}: arguments for call {index}, while {open_call} is open"
                arguments[index] += text
            case CallEnd(index):
                assert index == open_call, f"{where}: call {index} ends, while {open_call} is open"
                open_call = None
            case Text(text) | Reasoning(text):
                assert text, f"{where}: an empty {type(event).__name__}"
            case _:
                raise AssertionError(f"{where}: {event!r} is no event")
    if whole_calls:
        assert begun and open_call is None, f"{where}: {begun} calls were found, and {open_call} did not end"
        for index, text in arguments.items():
            assert _is_object(text), f"{where}: the arguments of call {index} are no JSON object: {text!r}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _cut(text: str) -> Iterator[list[str]]:
    yield list(text)
    chance = random.Random(text)
    for _ in range(CUTS):
        places = sorted(chance.sample(range(len(text) + 1), min(len(text), chance.randint(1, 6))))
        ends = [0, *places, len(text)]
        yield [text[start:end] for start, end in zip(ends, ends[1:], strict=False)]
