"""Write ``docs/config.md``: every option of ``sglang-plug serve``, from the option table.

``--check`` writes nothing and fails if the page is not what would be written.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from generate_hooks import fields
from generated_page import row, write_or_check

from sglang_plug import PluginOptions, Plugins
from sglang_plug.plugins.flags import ENVIRONMENT_KEYS, plugin_flags, variable_of
from sglang_plug.plugins.installed.discovery import DISTRIBUTION
from sglang_plug.plugins.registry import import_target
from sglang_plug.plugins.settings import settings_fields
from sglang_plug_api.options.option import Option
from sglang_plug_api.options.option_table import GROUPS

PAGE = Path(__file__).with_name("config.md")
TYPES: Mapping[type, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "switch",
    dict: "JSON object",
    tuple: "list",
}
NUMBERED: Mapping[str, str] = {"minimum": "≥ {}", "maximum": "≤ {}", "above": "> {}", "below": "< {}"}

PAGE_TEXT = """\
# Options

<!-- Written by docs/generate_config.py from the option table: edit that. -->

The options of `sglang-plug serve`. Every option has one name in three spellings: `--max-total-tokens` on the command
line, `max_total_tokens` (or with dashes) in the YAML file that `--config` names, and `SGLANG_PLUG_MAX_TOTAL_TOKENS` in
the environment. The command line has precedence over the environment, the environment over the file, and the file over
the default. A running server shows the resulting values at `/server_info`.

A *switch* is set by `--name` and unset by `--no-name`; in a file and in the environment it is `true` or `false`.
The values of a *list* are separated by commas, or the option is repeated; in a file they are a list. A default of `–`
means that nothing is set. The model may also be given as the first argument.

```yaml
# serve.yaml, for: sglang-plug serve --config serve.yaml
model-path: ./my-model
port: 8080
api-key: [first-key, second-key]
max-running-requests: 64
set:
  triton.splits: 8
```

The server does not start with an unknown key, a value of the wrong type or a value out of bounds; the message names the
option and its source, and the exit code is 2.

{groups}
## plugins and configuration file

These are read first, because plugins declare choices of the options above.

| flag | YAML key | environment | |
|---|---|---|---|
{flags}

## settings of components

A component's own options, as `--set NAME.KEY=VALUE` or under `set:` in the file. `sglang-plug plugins show NAME` lists
those of any component, including yours.

| setting | type | default | component | |
|---|---|---|---|---|
{settings}

## Other environment variables

Besides the options, the server and the libraries that it uses read these:

| variable | effect |
|---|---|
| `SGLANG_PLUG_TRANSFER_SECRET` | secret of servers that [send keys and values](distributed.md) to each other |
| `SGLANG_PLUG_REDIS_SECRET`, `SGLANG_PLUG_REDIS_PASSWORD` | secret and password of `sglang-plug-redis` |
| `HF_HOME`, `HF_HUB_OFFLINE`, `HF_TOKEN` | folder of downloaded models; `1`: download nothing; token of an account |
| `OMP_NUM_THREADS` | threads of the engine on a CPU |
| `XDG_STATE_HOME` | parent folder of stored files and batches, instead of `~/.local/state` |
| `XDG_CACHE_HOME` | parent folder of compiled kernels, instead of `~/.cache` |
| `TMPDIR` | folder of temporary files and of the sockets between processes |
| `CUDA_HOME`, `CUDA_VISIBLE_DEVICES` | toolkit for kernels that are compiled at run time; visible devices |
| `TRITON_INTERPRET` | `1`: Triton's kernels are interpreted, which needs no GPU, for tests |
| `NO_COLOR` | no colours in the output of commands |
"""


def group_sections(plugins: Plugins) -> Iterator[str]:
    """Yield a table for each group of options."""
    for group in GROUPS:
        yield f"## {group.title}\n"
        yield "| flag | YAML key | environment | type | default | |\n|---|---|---|---|---|---|"
        for option in group.options:
            yield row(
                ", ".join(f"`{flag}`" for flag in option.flags),
                ", ".join(f"`{key}`" for key in option.keys),
                f"`{option.variable}`",
                "; ".join([TYPES[option.kind], *bounds(option)]),
                default_cell(option.default),
                "; ".join(explanation(option, plugins)),
            )
        yield ""


def bounds(option: Option) -> Iterator[str]:
    """Yield the limits of a number."""
    for name, pattern in NUMBERED.items():
        bound = getattr(option, name)
        if bound is not None:
            yield pattern.format(bound)


def explanation(option: Option, plugins: Plugins) -> Iterator[str]:
    """Yield the purpose of the option and its choices."""
    yield option.help
    if names := option.names(plugins):
        yield "one of " + ", ".join(f"`{name}`" for name in names)


def flag_rows() -> Iterator[str]:
    """Yield the rows of the flags about plugins."""
    for action in plugin_flags()._actions:
        key = action.dest
        has_variable = key in ENVIRONMENT_KEYS or key == "config"
        yield row(
            f"`{action.option_strings[0]}{f' {action.metavar}' if isinstance(action.metavar, str) else ''}`",
            "" if key == "config" else f"`{key}`",
            f"`{variable_of(key)}`" if has_variable else "",
            str(action.help),
        )


def setting_rows(plugins: Plugins) -> Iterator[str]:
    """Yield the rows of the settings of built-in components."""
    for component in plugins.all():
        if component.spec.settings is None:
            continue
        settings = import_target(component.spec.settings)
        texts = field_texts(settings)
        for setting in settings_fields(settings):
            default = "required" if setting.required else default_cell(setting.default)
            name, text = f"`{component.spec.name}.{setting.name}`", texts.get(setting.name, "")
            yield row(name, f"`{setting.type}`", default, f"`{component.key}`", text)


def field_texts(cls: type) -> dict[str, str]:
    """Return the docstring of each field of a class, by name."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    return {ast.unparse(node.target): text for node, text in fields(definition)}


def default_cell(default: Any) -> str:
    """Return a default as the text of a cell."""
    if default is None or default == () or default == {}:
        return "–"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def page() -> str:
    """Return the content of the page."""
    plugins = Plugins.discover(PluginOptions(allow=(DISTRIBUTION,), strict=True))
    return PAGE_TEXT.format(
        groups="\n".join(group_sections(plugins)),
        flags="\n".join(flag_rows()),
        settings="\n".join(setting_rows(plugins)),
    )


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page, __doc__))
