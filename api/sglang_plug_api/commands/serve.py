"""``sglang-plug serve``: a model over HTTP."""

from __future__ import annotations

import argparse
import os
import sys

from sglang_plug import Plugins
from sglang_plug.collecting import collecting_later
from sglang_plug_api.options import add_arguments, misspelt_variables, server_config
from sglang_plug_api.plugin_table import slow_plugins


class ServeCommand:
    """Builds the configuration and runs the server until it is told to stop."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Every option of the table."""
        add_arguments(parser, plugins)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Serve; the exit status. A plugin that failed to load is one line on stderr."""
        config = server_config(options, plugins)
        for failure in plugins.failures:
            print(f"warning: {' '.join(str(failure).split())}", file=sys.stderr)
        for line in [*misspelt_variables(os.environ), *slow_plugins(plugins)]:
            print(f"warning: {line}", file=sys.stderr)
        for component in plugins.all():
            if component.given:
                component.settings()  # a mistake in those of a component that is not used counts, too
        with collecting_later():
            from sglang_plug_api.server import serve  # the web framework is not needed for --help

        return serve(config, plugins)


command = ServeCommand()
