"""Conformance test of output parsers: events must be consistent and not depend on how the output is divided."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sglang_plug.contracts.text.parsers import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    OutputParser,
    Reasoning,
    Text,
    joined,
)
from sglang_plug.plugins.registry import PluginError, Plugins
from sglang_plug.testing.growth import check_growth

from .parser_promises import check_around, check_class_methods, check_marks, check_progress, check_schemas

KINDS = ("tool-parser", "reasoning-parser")
CUTS = 8
"""Number of random divisions of each output."""
PLAIN_TEXTS = ("Hello, world.", "a < b", "1 < 2 <", "so it ends with <t", "a list [1, 2", "a\n\nb", "a\n\n", "a  b ")
"""Texts that follow no format, some of which end with the beginning of a marker or with white space."""
LETTERS = "Qq"
"""Letters that continue no marker, so that a parser which gets them must give out what it held back."""
CONTINUATIONS = (LETTERS, f"{LETTERS}\n{LETTERS}\n")
"""Further text of an output; the second one also ends the line, for parsers that wait for whole lines."""
PREFIXES = 400
"""Greatest number of beginnings of an output that are read, distributed over its length."""
DEPTH = 20_000
"""Levels of nested arguments, more than the stack of a recursive reader has room for."""
LENGTHS = (2_000, 16_000)
"""Characters of the outputs whose parsing is timed."""
PIECE = 4
"""Characters of a piece of them, about a token."""
ANY_TEXT = ("", " ", "Hello.", "\n\n", "{", '{"a": [1, "}"]}', "<", "<a></a>", "[f(x=1)]", "é漢🙂", "a\x00b")


def check_output_parser(
    name_or_class: str | type[OutputParser],
    outputs: Sequence[str] = (),
    *,
    calls: Sequence[str] = (),
    functions: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Feed a parser texts in its format and other texts, whole and divided in many ways.

    Args:
        name_or_class: the name a plugin declared for a tool-call or reasoning parser, ``KIND:NAME`` if it is both, or
            the class itself.
        outputs: texts in its format, complete or cut off.
        calls: texts, of ``outputs`` or others, in which every call is complete: its arguments must be a JSON object.
        functions: name -> JSON schema of the arguments, for formats whose arguments have no types.

    Raises:
        AssertionError: names the first output that fails, its division, and what was wrong.
        PluginError: no plugin, or more than one, declares the name.
    """
    parser = name_or_class if isinstance(name_or_class, type) else _declared(name_or_class)
    for output in (*outputs, *calls, *ANY_TEXT):
        whole = _read(parser, functions or {}, [output])
        _check(whole, f"{parser.__name__} fails {output!r}", whole_calls=output in calls)
        for pieces in _divisions(output):
            events = _read(parser, functions or {}, pieces)
            assert events == whole, f"{parser.__name__} fails {output!r}: cut as {pieces} it is {events}, whole {whole}"
    _check_nothing_lost(parser)
    for output in (*outputs, *calls):
        _check_cut_off(parser, functions or {}, output)
    _check_nested(parser, functions or {}, calls)
    _check_instances(parser, functions or {}, (*outputs, *calls))
    _check_growth(parser, functions or {}, (*outputs, *calls))
    check_around(parser, functions or {}, outputs, calls)
    check_schemas(parser, (*outputs, *calls))
    check_class_methods(parser, functions or {})
    check_marks(parser)
    check_progress(parser, functions or {})


def _check_nothing_lost(parser: type[OutputParser]) -> None:
    """Plain text is given whole, even what may have become a marker."""
    for text in PLAIN_TEXTS:
        for pieces in ([text], list(text)):
            content = _content(_read(parser, {}, pieces))
            received = content.get("reasoning", "") + content.get("text", "")
            expected = text.strip() if "reasoning" in content else text
            assert received == expected, (
                f"{parser.__name__} fails {text!r}: of plain text, feed() and finish() give only {received!r}"
            )


def _check_cut_off(parser: type[OutputParser], functions: Mapping[str, Mapping[str, Any]], output: str) -> None:
    """An output may end anywhere: ``finish()`` gives what further text would have shown to be no marker."""
    step = 1 + len(output) // PREFIXES
    for prefix in (output[:end] for end in range(1, len(output) + 1, step)):
        received = _content(_read(parser, functions, [prefix]))
        for continuation in CONTINUATIONS:
            expected = _content(_read(parser, functions, [prefix + continuation]))
            if _calls(received) != _calls(expected) or not any(LETTERS in text for text in expected.values()):
                continue  # the letters undid a call that was complete without them, or became a part of its name
            for part, text in expected.items():
                known = text.partition(LETTERS)[0]
                assert _is_whole(part, received.get(part, ""), known), (
                    f"{parser.__name__} fails {prefix!r}: feed() and finish() give {received.get(part, '')!r} as "
                    f"{part}, and {known!r} if the output goes on, so finish() loses text that was held back"
                )


def _is_whole(part: str, received: str, known: str) -> bool:
    """Return whether ``received`` has what is ``known`` of a part; white space at its ends is no loss.

    Arguments may have more, such as a number that the letters made malformed, and less punctuation of JSON, as a string
    that has not begun needs no quote.
    """
    if part in ("text", "reasoning"):
        return received.strip() == known.strip()
    return received.strip().startswith(known.strip().rstrip(' "[{:,'))


def _check_nested(parser: type[OutputParser], functions: Mapping[str, Mapping[str, Any]], calls: Sequence[str]) -> None:
    """Arguments that are nested too deeply for a recursive reader raise nothing."""
    for call in calls:
        for case, output in _nested(call):
            try:
                events = _read(parser, functions, [output])
            except AssertionError as error:
                raise AssertionError(
                    f"{parser.__name__} fails {call!r} with {case}: {_message(error.__cause__)}"
                ) from error.__cause__
            _check(events, f"{parser.__name__} fails {call!r} with {case}", whole_calls=False)


def _nested(call: str) -> Iterator[tuple[str, str]]:
    """Yield what was nested, and ``call`` with that: each JSON object in it, and each bracket."""
    for start, character in enumerate(call):
        if character == "{" and (end := _end_of_object(call, start)):
            for opening, closing in (("[", "]"), ('{"a": ', "}")):
                value = f'{{"a": {opening * DEPTH}1{closing * DEPTH}}}'
                yield f"{DEPTH} nested {opening}{closing} at {start}", call[:start] + value + call[end:]
        if character in "[({":
            yield f"{DEPTH} times {character} at {start}", call[:start] + character * DEPTH + call[start:]


def _end_of_object(text: str, start: int) -> int:
    """Return where the JSON object ends that begins at ``start``; 0 if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except ValueError:
        return 0


def _content(events: Sequence[Event]) -> dict[str, str]:
    """Return the characters of the text, the reasoning, and the arguments of each call, by what they are."""
    content: dict[str, str] = {}
    for event in events:
        match event:
            case Text(text):
                content["text"] = content.get("text", "") + text
            case Reasoning(text):
                content["reasoning"] = content.get("reasoning", "") + text
            case CallArguments(index, text):
                name = f"arguments of call {index}"
                content[name] = content.get(name, "") + text
            case CallStart(index):
                content[f"arguments of call {index}"] = ""
    return content


def _calls(content: Mapping[str, str]) -> int:
    return len(content.keys() - {"text", "reasoning"})


def _message(error: BaseException | None) -> str:
    return f"raised {type(error).__name__}: {error}"


def _check_instances(
    parser: type[OutputParser], functions: Mapping[str, Mapping[str, Any]], outputs: Sequence[str]
) -> None:
    """Two outputs that are parsed at the same time do not affect each other."""
    for output in outputs:
        expected = _read(parser, functions, list(output))
        first, second = parser.for_functions(functions), parser.for_functions(functions)
        events, others = list[Event](), list[Event]()
        for character in output:
            events += first.feed(character)
            others += second.feed(character)
        events += first.finish()
        others += second.finish()
        assert joined(events) == joined(others) == expected, (
            f"{parser.__name__} fails {output!r}: two instances that are used in turn disturb each other"
        )


def _check_growth(
    parser: type[OutputParser], functions: Mapping[str, Mapping[str, Any]], outputs: Sequence[str]
) -> None:
    """A long output takes time in proportion to its length: the outputs one after the other, and text."""
    for subject, unit in (("outputs in its format", "".join(outputs)), ("plain text", "\n".join(PLAIN_TEXTS))):
        if not unit:
            continue
        longest = unit * (1 + LENGTHS[-1] // len(unit))

        def work(length: int, longest: str = longest) -> Callable[[], object]:
            pieces = [longest[start : start + PIECE] for start in range(0, length, PIECE)]
            return lambda: _feed_all(parser.for_functions(functions), pieces)

        check_growth(work, LENGTHS, f"{parser.__name__}.feed() of the characters of {subject}")


def _feed_all(parser: OutputParser, pieces: Sequence[str]) -> None:
    for piece in pieces:
        parser.feed(piece)
    parser.finish()


def _declared(name: str) -> type[OutputParser]:
    plugins = Plugins.discover()
    components = [
        component for kind in KINDS for component in plugins.all(kind) if name in (component.spec.name, component.key)
    ]
    if len(components) != 1:
        raise PluginError(
            f"{name!r} is declared for {len(components)} kinds of parsers; write KIND:NAME, or give the class"
        )
    parser: type[OutputParser] = components[0].load_class(OutputParser)
    return parser


def _read(parser: type[OutputParser], functions: Mapping[str, Mapping[str, Any]], pieces: Sequence[str]) -> list[Event]:
    parser_instance, parsed = parser.for_functions(functions), list[Event]()
    for number, events in enumerate(
        [*((lambda piece=piece: parser_instance.feed(piece)) for piece in pieces), parser_instance.finish], start=1
    ):
        try:
            batch = events()
        except Exception as error:
            raise AssertionError(
                f"{parser.__name__} fails {pieces}: raised {type(error).__name__}: {error} in call {number}"
            ) from error
        assert isinstance(batch, list), f"{parser.__name__} fails {pieces}: returned {type(batch).__name__}, not a list"
        parsed += batch
    return joined(parsed)


def _check(events: Sequence[Event], where: str, *, whole_calls: bool) -> None:
    """Check that calls begin, continue and end in order, counted from 0."""
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


def _divisions(text: str) -> Iterator[list[str]]:
    yield list(text)
    chance = random.Random(text)
    for _ in range(CUTS):
        offsets = sorted(chance.sample(range(len(text) + 1), min(len(text), chance.randint(1, 6))))
        ends = [0, *offsets, len(text)]
        yield [text[start:end] for start, end in zip(ends, ends[1:], strict=False)]
