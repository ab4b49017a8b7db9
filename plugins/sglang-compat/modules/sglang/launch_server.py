"""``python -m sglang.launch_server`` runs ``python -m sglang_plug.launch_server``."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("sglang_plug.launch_server", run_name="__main__", alter_sys=True)
