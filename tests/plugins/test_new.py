"""``sglang-plug plugins new`` creates distributions whose components conform where they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from sglang_plug.__main__ import main
from sglang_plug_api.scaffold.rendering import template_kinds


def run(*command: str | Path, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_a_plugin_of_each_kind_installs_and_conforms(tmp_path: Path) -> None:
    projects = tmp_path / "projects"
    for kind in template_kinds():
        assert main(["plugins", "new", kind, f"new-{kind}", "--into", str(projects)]) == 0
    folders = sorted(projects.iterdir())
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(packages, "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pip = (python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation")
    run(*pip, "--disable-pip-version-check", *folders)
    names = [folder.name for folder in folders]
    tested = run(python, "-m", "sglang_plug", "plugins", "test", "--strict", *names, OMP_NUM_THREADS="1")
    assert f"{len(names)} passed" in tested
    run(python, "-m", "sglang_plug", "plugins", "check", "sglang-plug-new-eviction")
