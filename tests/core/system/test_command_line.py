"""Parsers, also those of subcommands, raise errors instead of exiting."""

from __future__ import annotations

import pytest

from sglang_plug.config import ConfigError
from sglang_plug.system.command_line import Parser, PartialParser


def nested() -> Parser:
    parser = Parser(prog="program")
    parser.add_argument("--outer")
    parser.add_subparsers().add_parser("inner").add_argument("--length", type=int)
    return parser


def test_what_is_known_is_parsed() -> None:
    assert nested().parse_args(["--outer", "a", "inner", "--length", "3"]).length == 3


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["inner", "--lenght", "3"], "unknown option '--lenght'; did you mean '--length'?\nsee: program inner --help"),
        (["inner", "--lenght=3"], "unknown option '--lenght'; did you mean '--length'?"),
        (["inner", "more"], "unexpected argument 'more'"),
        (["inner", "--length", "long"], "argument --length: invalid int value: 'long'"),
        (["--out=a", "inner"], "unknown option '--out'; did you mean '--outer'?"),
    ],
)
def test_a_mistake_is_a_config_error(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        nested().parse_args(argv)
    assert str(caught.value).startswith(message)


def test_a_partial_parser_keeps_the_rest_in_order() -> None:
    parser = PartialParser()
    parser.add_argument("--mine")
    actual, rest = parser.parse_known_args(["a", "--other", "-1", "--mine", "x", "b", "--last=2"])
    assert (actual.mine, rest) == ("x", ["a", "--other", "-1", "b", "--last=2"])


def test_what_is_known_of_an_option_is_told_instead_of_the_nearest() -> None:
    parser = Parser(prog="program")
    parser.add_argument("--length")
    parser.explain = {"--lengths": "use --length, once"}.get
    with pytest.raises(ConfigError, match="unknown option '--lengths': use --length, once\nsee: "):
        parser.parse_args(["--lengths=3"])
    with pytest.raises(ConfigError, match="unknown option '--lenght'; did you mean '--length'?"):
        parser.parse_args(["--lenght=3"])
