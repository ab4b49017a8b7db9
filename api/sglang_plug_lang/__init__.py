"""Programs that use a model: prompts, generation, choices and control flow as plain Python.

@function
def answer(s, question):
    s += user(question)
    s += assistant(gen("answer", max_tokens=64))

set_default_backend(RuntimeEndpoint("http://localhost:30000"))
print(answer("What is the capital of France?")["answer"])
"""

from __future__ import annotations

from .backends.base import Backend, Completion, Prompt
from .backends.engine import EngineBackend
from .backends.openai import OpenAI, OpenAIEndpoint
from .backends.runtime import Runtime, RuntimeEndpoint
from .choices import (
    ChoicesMethod,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from .default import flush_cache, get_server_info, global_config, set_default_backend
from .errors import BackendError, LanguageError
from .expressions import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    image,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from .program import Function, function
from .state import ForkGroup, ProgramState
from .utils import (
    execute_shell_command,
    launch_server_cmd,
    load_image,
    print_highlight,
    terminate_process,
    wait_for_server,
)

__all__ = [
    "Backend",
    "BackendError",
    "ChoicesMethod",
    "Completion",
    "EngineBackend",
    "ForkGroup",
    "Function",
    "LanguageError",
    "OpenAI",
    "OpenAIEndpoint",
    "ProgramState",
    "Prompt",
    "Runtime",
    "RuntimeEndpoint",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "execute_shell_command",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "launch_server_cmd",
    "load_image",
    "print_highlight",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "terminate_process",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "wait_for_server",
]
