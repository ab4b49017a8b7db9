"""Replacement for ``sglang.lang.chat_template``."""

from __future__ import annotations

from sglang_plug_lang.templates import ChatTemplate
from sglang_plug_lang.templates import template_for as get_chat_template_by_model_path
from sglang_plug_lang.templates import template_named as get_chat_template

__all__ = ["ChatTemplate", "get_chat_template", "get_chat_template_by_model_path"]
