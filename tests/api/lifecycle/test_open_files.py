"""Tests of the limit of open files, in separate processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource
from sglang_plug_api.lifecycle.open_files import max_connections, raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
raise_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], max_connections(500))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "limit"), [(64, 1000, 500), (64, 400, 272), (100, 100, 50), (1000, 1000, 500)]
)
def test_the_limit_is_raised_and_some_files_are_kept_for_other_things(soft: int, hard: int, limit: int) -> None:
    script = SCRIPT.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(hard), str(limit)]
