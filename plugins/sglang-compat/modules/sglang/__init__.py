"""SGLang's frontend language and helpers on top of sglang-plug. This is not SGLang.

Names are imported when they are used, so ``python -m sglang.launch_server`` imports nothing before the server does.
"""

from __future__ import annotations

import os
import sys

SUFFIXES = (".dist-info", ".egg-info")


def _refuse_next_to_sglang() -> None:
    """Raise ``ImportError`` if the distribution ``sglang`` is installed, whose modules have the same names."""
    for folder in sys.path:
        for entry in os.listdir(folder) if folder and os.path.isdir(folder) else ():
            if entry.startswith("sglang-") and entry.endswith(SUFFIXES):
                raise ImportError(
                    f"the module 'sglang' is that of sglang-compat, but SGLang itself is installed too "
                    f"({os.path.join(folder, entry)}): uninstall one of them, and install the other one again"
                )


_refuse_next_to_sglang()


def __getattr__(name: str) -> object:
    if name == "Engine":
        from sglang_plug_api import Engine

        return Engine
    if name == "__version__":
        from importlib.metadata import version

        return version("sglang-compat")
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'sglang' has no attribute {name!r}")
    import sglang_plug_lang

    if name == "__all__":
        return ["Engine", *sglang_plug_lang.__all__]
    if name not in sglang_plug_lang.__all__:
        raise AttributeError(f"module 'sglang' of sglang-compat has no attribute {name!r}")
    return getattr(sglang_plug_lang, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__getattr__("__all__")])  # type: ignore[call-overload]
