"""``sglang-plug completion``: completion of commands, options and components by a shell."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from sglang_plug import ConfigError, Plugins
from sglang_plug.plugins.flags import plugin_flags
from sglang_plug.plugins.settings import settings_fields
from sglang_plug.system.command_line import Parser
from sglang_plug_api.options.option_table import options as all_options

BASH = """\
_sglang_plug() {
    local IFS=$'\\n' words current="${COMP_WORDS[COMP_CWORD]}"
    words="$(sglang-plug completion "--current=$current" words -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)"
    COMPREPLY=($(compgen -W "$words" -- "${current#:}"))
    if [[ "${COMPREPLY[0]}" == *[.=] ]]; then compopt -o nospace; fi
}
complete -o default -F _sglang_plug sglang-plug
"""
ZSH = """\
_sglang_plug() {
    local -a candidates
    candidates=("${(@f)$(sglang-plug completion "--current=$PREFIX" words -- "${(@)words[2,CURRENT-1]}" 2>/dev/null)}")
    if [[ "$candidates[1]" == *[.=] ]]; then compadd -S '' -- $candidates
    elif [[ -n "$candidates" ]]; then compadd -- $candidates; else _files; fi
}
compdef _sglang_plug sglang-plug
"""
FISH = """\
function __sglang_plug_words
    set -l typed (commandline -opc)
    sglang-plug completion "--current="(commandline -ct) words -- $typed[2..-1] 2>/dev/null
end
complete -c sglang-plug -a '(__sglang_plug_words)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
WORDS = "words"
TOP_LEVEL = ("--help", "--version")
VALUES = ("--set", "--plugins", "--block-plugin", "--kind")
"""Flags whose values are names of plugins, components and settings."""
KEYS = ("key", "name")
"""Arguments of ``sglang-plug plugins`` that name a plugin."""


class CompletionCommand:
    """The command, which prints a script for a shell; the script asks it for the words that may come next."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add the shell, and the words before the one to complete."""
        parser.add_argument(
            "shell", choices=(*SCRIPTS, WORDS), help=f"the shell; {WORDS}: print the words that may follow WORD …"
        )
        parser.add_argument("--current", default="", metavar="TEXT", help="beginning of the word to complete")
        parser.add_argument("typed", nargs="*", metavar="WORD", help="words after sglang-plug, given after --")

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Print the script, or one word per line."""
        if options.shell == WORDS:
            print("\n".join(next_words(options.typed, plugins, options.current)))
        elif options.typed:
            raise ConfigError(f"completion {options.shell} takes no further words")
        else:
            print(SCRIPTS[options.shell], end="")
        return 0


def next_words(typed: Sequence[str], plugins: Plugins, current: str = "") -> list[str]:
    """Return what may follow the words after ``sglang-plug``; empty where a file or a text is expected.

    Args:
        typed: the words before the one that is completed.
        plugins: what commands, options and components there are.
        current: the start of the word that is completed. It matters where not all words can be listed at once.
    """
    commands = plugins.names("command")
    name = next((word for word in typed if word in commands), None)
    if name is None:
        return _flag_values(typed[-1], plugins, current) if typed and typed[-1] in VALUES else [*commands, *TOP_LEVEL]
    split = [*typed, current] if current == ":" else list(typed)  # bash splits kind:name into three words
    if split[-1] == ":" and split[-2] in plugins.kinds():
        return plugins.names(split[-2])
    command: Any = plugins.get("command", name).load()
    parser = Parser(prog=name, parents=[plugin_flags()], conflict_handler="resolve")
    command.arguments(parser, plugins)
    actions = list(_actions(parser, typed[list(typed).index(name) + 1 :]))
    last = typed[-1]
    for action in actions:
        if last in action.option_strings and action.nargs != 0:
            return _values(action, last, plugins, current)
    flags = [flag for action in actions for flag in action.option_strings if flag.startswith("--")]
    positionals = [action for action in actions if not action.option_strings]
    choices = [str(choice) for action in positionals for choice in action.choices or ()]
    if name == "plugins":
        choices += [word for action in positionals if action.dest in KEYS for word in _keys(plugins, action.dest)]
    return [*choices, *flags]


def _actions(parser: argparse.ArgumentParser, typed: Sequence[str]) -> Iterator[argparse.Action]:
    """Yield the arguments of the parser, or those of the subparser that was chosen, which also takes the parser's."""
    for action in parser._actions:  # argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction):
            chosen = next((word for word in typed if word in action.choices), None)
            if chosen is not None:
                yield from _actions(action.choices[chosen], typed)
                yield from (other for other in parser._actions if other.option_strings and other.dest != "help")
                return
    yield from parser._actions


def _values(action: argparse.Action, flag: str, plugins: Plugins, current: str) -> list[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if flag in VALUES:
        return _flag_values(flag, plugins, current)
    option = next((option for option in all_options() if flag in option.flags), None)
    return [] if option is None else option.names(plugins)


def _flag_values(flag: str, plugins: Plugins, current: str) -> list[str]:
    """Return the values of a flag about plugins."""
    if flag == "--kind":
        return plugins.kinds()
    if flag != "--set":
        return _keys(plugins, "name")
    name, dot, _ = current.partition(".")
    with_settings = [component for component in plugins.all() if component.spec.settings is not None]
    if not dot:
        return sorted({f"{component.spec.name}." for component in with_settings})
    chosen = [component for component in with_settings if component.spec.name == name]
    return [f"{name}.{field.name}=" for component in chosen for field in settings_fields(type(component.settings()))]


def _keys(plugins: Plugins, dest: str) -> list[str]:
    """Return the names of plugins and distributions and, for a ``key``, of components."""
    owners = {name for plugin in plugins.loaded for name in (plugin.name, plugin.distribution)}
    if dest != "key":
        return sorted(owners)
    components = plugins.all()
    names = Counter(component.spec.name for component in components)
    several = {
        f"{component.spec.kind}:{component.spec.name}" for component in components if names[component.spec.name] > 1
    }
    return sorted(owners | set(names) | several)


command = CompletionCommand()
