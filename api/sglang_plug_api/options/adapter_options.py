"""The options of adapters: a part of ``option_table``."""

from __future__ import annotations

from .option import Group, option

ADAPTERS = Group(
    "adapters",
    (
        option(
            "--lora-paths --lora-modules",
            "engine.adapters.paths",
            "adapters to load at start, each with the name that requests know it by, or a folder, whose last part is "
            "the name; repeatable, or several in a row",
            tuple,
            metavar="NAME=FOLDER",
            several=True,
        ),
        option(
            "--enable-lora",
            "engine.adapters.enabled",
            "let adapters be loaded while serving; implied by --lora-paths",
            bool,
        ),
        option(
            "--max-loras-per-batch --max-loras",
            "engine.adapters.max_per_batch",
            "different adapters in one step; requests with further adapters wait",
            int,
            minimum=1,
        ),
        option(
            "--max-loaded-loras --max-cpu-loras",
            "engine.adapters.max_loaded",
            "adapters that may be loaded at once; default: as many as memory holds",
            int,
            minimum=1,
        ),
    ),
)
