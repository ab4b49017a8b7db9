"""Selection of the parsers that read the outputs of this server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sglang_plug import OutputParser, Plugins, Tokenizer, ToolParserSpec
from sglang_plug.config import AUTO, ConfigError
from sglang_plug.plugins.attribution import attributed
from sglang_plug.plugins.installed.discovery import DISTRIBUTION
from sglang_plug.plugins.registry import PluginError
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.options.config import NO_PARSER, ServerConfig

logger = logging.getLogger(__name__)

TOOLS, REASONING = "tool-parser", "reasoning-parser"
ParserClass = type[OutputParser]


@dataclass(frozen=True, slots=True)
class Parsers:
    """The server's parsers of tool calls and of reasoning, and a lookup for those that a request names."""

    tools: ParserClass | None = None
    reasoning: ParserClass | None = None
    no_tools: str = "the server has no parser of calls"
    """The reason why ``tools`` is ``None``."""
    find: Callable[[str, str], ParserClass] | None = None
    """Lookup of a parser by kind and name. Raises ``PluginError``."""

    def for_tools(self) -> ParserClass:
        """Return the parser of tool calls. Raises ``ApiError`` if there is none."""
        if self.tools is None:
            raise ApiError(f"tools cannot be used: {self.no_tools}", param="tools")
        return self.tools

    def by_name(self, kind: str, name: str, param: str) -> ParserClass:
        """Return the parser that a request names. Raises ``ApiError`` if there is none of that name."""
        try:
            if self.find is None:
                raise PluginError(f"no {kind} named {name!r}")
            return self.find(kind, name)
        except ConfigError as error:
            raise ApiError(str(error).partition("\n")[0], param=param) from None


def load_parsers(config: ServerConfig, plugins: Plugins, tokenizer: Tokenizer | None) -> Parsers:
    """Load the parsers that the configuration names, or that suit the chat template. Raises ``ConfigError``."""

    def find(kind: str, name: str) -> ParserClass:
        component = plugins.get(kind, name)
        parser: ParserClass = component.load_class(OutputParser)
        with attributed(component, "to start"):
            parser()  # every output gets its own instance: check now that one can be made
        return parser

    tools, reasoning = config.tool_call_parser, config.reasoning_parser
    refusal = ""
    if tools == AUTO:
        tools, refusal = _matching_tool_parser(plugins, tokenizer, find)
    elif tools == NO_PARSER:
        refusal = f"the server runs with --tool-call-parser {NO_PARSER}"
    return Parsers(
        tools=None if tools == NO_PARSER else find(TOOLS, tools),
        reasoning=None if reasoning == NO_PARSER else find(REASONING, reasoning),
        no_tools=refusal,
        find=find,
    )


def _matching_tool_parser(
    plugins: Plugins, tokenizer: Tokenizer | None, find: Callable[[str, str], ParserClass]
) -> tuple[str, str]:
    """Return the name of the parser that suits the chat template; or ``NO_PARSER`` and the reason."""
    template = None if tokenizer is None else tokenizer.chat_template(tools=True)
    if template is None:
        return NO_PARSER, "the model has no chat template"
    components = sorted(
        (item for item in plugins.all(TOOLS) if not (isinstance(item.spec, ToolParserSpec) and item.spec.alias_of)),
        key=lambda item: (item.plugin.distribution == DISTRIBUTION, item.spec.name),
    )
    for component in components:
        name = component.spec.name
        try:
            if find(TOOLS, name).matches_template(template):
                logger.info("Tool calls are parsed by %s, which suits the chat template", component)
                return name, ""
        except Exception as error:  # a plugin that the user did not choose must not stop the server
            logger.warning("Skipped %s: cannot check whether it suits the chat template: %s", component, error)
    names = ", ".join(plugins.names(TOOLS)) or "none is installed"
    return NO_PARSER, f"no parser suits the chat template; start the server with --tool-call-parser, one of: {names}"
