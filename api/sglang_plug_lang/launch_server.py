"""Alias: ``python -m sglang_plug_lang.launch_server`` runs ``python -m sglang_plug.launch_server``.

With it, ``sglang`` in a document or program can be replaced by one name everywhere.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("sglang_plug.launch_server", run_name="__main__", alter_sys=True)
