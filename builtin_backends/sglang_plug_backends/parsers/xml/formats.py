"""The formats of calls with tagged arguments that models write."""

from __future__ import annotations

from dataclasses import replace

from .calls import XmlCalls
from .form import XmlForm

FUNCTION = XmlForm(
    begin=("<function=",),
    name_end=">",
    parameter="<parameter=",
    key_end=(">",),
    value_end="</parameter>",
    end=("</function>",),
)
INVOKE = XmlForm(
    begin=('<invoke name="',),
    name_end='">',
    parameter='<parameter name="',
    key_end=('">',),
    value_end="</parameter>",
    end=("</invoke>",),
)
STEP3 = XmlForm(
    opening="<｜tool_calls_begin｜>",
    closing="<｜tool_calls_end｜>",
    begin=("<｜tool_call_begin｜>", "function", "<｜tool_sep｜>", '<steptml:invoke name="'),
    name_end='">',
    parameter='<steptml:parameter name="',
    key_end=('">',),
    value_end="</steptml:parameter>",
    end=("</steptml:invoke>", "<｜tool_call_end｜>"),
)
PAIRS = XmlForm(
    begin=("<tool_call>",),
    name_end="",
    parameter="<arg_key>",
    key_end=("</arg_key>", "<arg_value>"),
    value_end="</arg_value>",
    end=("</tool_call>",),
)


def _dsml(section: str) -> XmlForm:
    """Return DeepSeek's form; ``section``: name of the tag around all calls."""
    return XmlForm(
        opening=f"<｜DSML｜{section}>",
        closing=f"</｜DSML｜{section}>",
        begin=('<｜DSML｜invoke name="',),
        name_end='">',
        name_only_end='"/>',
        parameter='<｜DSML｜parameter name="',
        typed=('" string="true', '" string="false'),
        key_end=('">',),
        value_end="</｜DSML｜parameter>",
        end=("</｜DSML｜invoke>",),
    )


def _hunyuan(suffix: str) -> XmlForm:
    """Return Hunyuan's form; ``suffix``: what some tokenizers add to the names of the tags."""
    return XmlForm(
        opening=f"<tool_calls{suffix}>",
        closing=f"</tool_calls{suffix}>",
        begin=(f"<tool_call{suffix}>",),
        name_end=f"<tool_sep{suffix}>",
        parameter=f"<arg_key{suffix}>",
        key_end=(f"</arg_key{suffix}>", f"<arg_value{suffix}>"),
        value_end=f"</arg_value{suffix}>",
        end=(f"</tool_call{suffix}>",),
    )


class Qwen3Coder(XmlCalls):
    """Qwen3-Coder, Nemotron 3 and Step 3.5: ``<function=…>`` with values on lines of their own."""

    forms = (
        replace(FUNCTION, opening="<tool_call>", closing="</tool_call>", shared=False, bare=True, value_line="\n"),
    )

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template shows functions in the tags of calls."""
        return "<tool_call>" in template and "<function=" in template


class SeedOss(XmlCalls):
    """Seed-OSS: ``<function=…>`` in tags of its own."""

    needs_special_tokens = True
    forms = (replace(FUNCTION, opening="<seed:tool_call>", closing="</seed:tool_call>", shared=False),)

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the tags."""
        return "<seed:tool_call>" in template


class MiniMaxM2(XmlCalls):
    """MiniMax M2: ``<invoke name="…">``, all calls in one section."""

    needs_special_tokens = True
    forms = (replace(INVOKE, opening="<minimax:tool_call>", closing="</minimax:tool_call>"),)

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the tags."""
        return "<minimax:tool_call>" in template


class DeepSeekV32(XmlCalls):
    """DeepSeek V3.2: tags that say of each value whether it is text or JSON."""

    needs_special_tokens = True
    forms = (_dsml("function_calls"), _dsml("tool_calls"))

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the section."""
        return "DSML" in template and "function_calls>" in template


class DeepSeekV4(DeepSeekV32):
    """DeepSeek V4: as V3.2 with another name of the section."""

    forms = (_dsml("tool_calls"), _dsml("function_calls"))

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the section."""
        return "DSML" in template and "tool_calls>" in template and not super().matches_template(template)


class Step3(XmlCalls):
    """Step 3: ``<steptml:invoke name="…">`` between special tokens."""

    needs_special_tokens = True
    forms = (STEP3,)

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the tags."""
        return "steptml:invoke" in template


class Glm45(XmlCalls):
    """GLM 4.5 and 4.6: pairs of a key and a value, each on a line of its own."""

    needs_special_tokens = True
    forms = (PAIRS,)

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template shows keys and values on separate lines."""
        return "<arg_key>" in template and "<tool_sep" not in template and "</arg_key><arg_value>" not in template


class Glm47(Glm45):
    """GLM 4.7: the pairs of GLM 4.5 without line ends."""

    forms = (replace(PAIRS, line=""),)

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template shows keys and values on one line."""
        return "</arg_key><arg_value>" in template and "<tool_sep" not in template


class Hunyuan(XmlCalls):
    """Hunyuan 3: pairs of a key and a value, all calls in one section."""

    needs_special_tokens = True
    forms = (_hunyuan(""), _hunyuan(":opensource"))

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the mark after the name."""
        return "<tool_sep" in template
