"""``sglang-plug serve``: serves a model over HTTP."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from sglang_plug import Plugins
from sglang_plug.system.gc_control import gc_paused
from sglang_plug_api.lifecycle.plugin_table import slow_plugins
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.options.parsing import add_arguments, misspelt_variables, server_config


class ServeCommand:
    """Builds the configuration and runs the server until a signal stops it.

    Args:
        run_server: serves a configuration with plugins and returns the exit status; by default the whole server.
    """

    def __init__(self, run_server: Callable[[ServerConfig, Plugins], int] | None = None) -> None:
        self._run_server = run_server

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add every option of the table."""
        add_arguments(parser, plugins)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Serve; return the exit status. Prints one line on stderr for each plugin that failed to load."""
        config = server_config(options, plugins)
        for failure in plugins.failures:
            print(f"warning: {' '.join(str(failure).split())}", file=sys.stderr)
        for line in [*misspelt_variables(os.environ), *slow_plugins(plugins)]:
            print(f"warning: {line}", file=sys.stderr)
        plugins.check_settings()
        if self._run_server is not None:
            return self._run_server(config, plugins)
        with gc_paused():
            from sglang_plug_api.lifecycle.server import serve  # the web framework is not needed for --help

        return serve(config, plugins)


command = ServeCommand()
