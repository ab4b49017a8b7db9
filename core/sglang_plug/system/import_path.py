"""Removing the working directory from Python's import path, as it may be a folder with foreign files.

Imports only modules that Python has loaded before it runs any program.
"""

from __future__ import annotations

import os
import sys


def leave_out_working_directory() -> None:
    """Remove the working directory from ``sys.path`` unless ``PYTHONPATH`` names it.

    ``python -m`` puts it first, and an empty entry of ``PYTHONPATH`` (``PYTHONPATH=$PYTHONPATH:/plugins``) means it,
    too. To be called once, by a program, before it imports anything.
    """
    try:
        here = os.getcwd()
    except OSError:  # it has been removed
        here = ""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if sys.flags.ignore_environment or here not in map(os.path.abspath, filter(None, named)):
        sys.path[:] = [path for path in sys.path if path not in ("", here)]
