"""``python -m sglang_plug_lang.launch_server ARGUMENTS`` is ``python -m sglang_plug.launch_server ARGUMENTS``.

So that a document's or a program's ``sglang`` becomes one name everywhere.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("sglang_plug.launch_server", run_name="__main__", alter_sys=True)
