"""``sglang-plug completion``: completion of commands, options and components by a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from sglang_plug import ConfigError, Plugins
from sglang_plug.config import AUTO
from sglang_plug.system.command_line import Parser
from sglang_plug_api.options.option import Option
from sglang_plug_api.options.option_table import options as all_options

BASH = """\
_sglang_plug() {
    local IFS=$'\\n' words
    words="$(sglang-plug completion words -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)"
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _sglang_plug sglang-plug
"""
ZSH = """\
_sglang_plug() {
    local -a candidates
    candidates=("${(@f)$(sglang-plug completion words -- "${(@)words[2,CURRENT-1]}" 2>/dev/null)}")
    if [[ -n "$candidates" ]]; then compadd -- $candidates; else _files; fi
}
compdef _sglang_plug sglang-plug
"""
FISH = """\
function __sglang_plug_words
    set -l typed (commandline -opc)
    sglang-plug completion words -- $typed[2..-1] 2>/dev/null
end
complete -c sglang-plug -a '(__sglang_plug_words)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
WORDS = "words"


class CompletionCommand:
    """The command, which prints a script for a shell; the script asks it for the words that may come next."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add the shell, and the words before the one to complete."""
        parser.add_argument("shell", choices=(*SCRIPTS, WORDS), help=f"the shell; {WORDS}: what may follow WORD …")
        parser.add_argument("typed", nargs="*", metavar="WORD", help="words after sglang-plug, behind --")

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Print the script, or one word per line."""
        if options.shell == WORDS:
            print("\n".join(next_words(options.typed, plugins)))
        elif options.typed:
            raise ConfigError(f"completion {options.shell} takes no further words")
        else:
            print(SCRIPTS[options.shell], end="")
        return 0


def next_words(typed: Sequence[str], plugins: Plugins) -> list[str]:
    """Return what may follow the words after ``sglang-plug``; empty where a file or a text is expected."""
    commands = plugins.names("command")
    name = next((word for word in typed if word in commands), None)
    if name is None:
        return [*commands, "--help", "--version"]
    command: Any = plugins.get("command", name).load()
    parser = Parser(prog=name)
    command.arguments(parser, plugins)
    actions = list(_actions(parser, typed[list(typed).index(name) + 1 :]))
    last = typed[-1]
    for action in actions:
        if last in action.option_strings and action.nargs != 0:
            return _values(action, last, plugins)
    flags = [flag for action in actions for flag in action.option_strings if flag.startswith("--")]
    choices = [str(choice) for action in actions if not action.option_strings for choice in action.choices or ()]
    return [*choices, *flags]


def _actions(parser: argparse.ArgumentParser, typed: Sequence[str]) -> Iterator[argparse.Action]:
    """Yield the arguments of the parser, or those of the subparser that was chosen."""
    for action in parser._actions:  # argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction):
            chosen = next((word for word in typed if word in action.choices), None)
            if chosen is not None:
                yield from _actions(action.choices[chosen], typed)
                return
    yield from parser._actions


def _values(action: argparse.Action, flag: str, plugins: Plugins) -> list[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    option = next((option for option in all_options() if flag in option.flags), None)
    return [] if option is None else _option_values(option, plugins)


def _option_values(option: Option, plugins: Plugins) -> list[str]:
    if option.component is None:
        return list(option.choices)
    automatic = [AUTO] if option.default == AUTO else []
    return [*automatic, *option.others, *plugins.names(option.component)]


command = CompletionCommand()
