"""The cells of SGLang's published documents run unchanged with ``sglang-compat``.

The named models are tiny ones in a local hub cache. What the cells' answers say is tested in ``tests/e2e``.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.document_models import make_models
from tests.e2e.test_documents import CELLS, EXCLUDED, cells_of
from tests.e2e.vision_models import make_vision_model, png

pytest.importorskip("requests", reason="the documents' cells use it; it comes with the 'test' extra")

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "plugins" / "sglang-compat" / "modules"
REVISION = "0" * 40
REPAIRS = {
    # The copied document lacks the host.
    r"https://:\{port\}": "http://localhost:{port}",
    # An image next to the test, instead of one on the internet.
    r"https://github\.com/sgl-project/sglang/\S*example_image\.png\?raw=true": "example_image.png",
    # The assertion for this route allows no keys besides those of one version of SGLang.
    r'keys\(\) == (\{"model_path", "is_generation", "tokenizer_path"\})': r"keys() >= \1",
}
PORT = 30000
"""Port of the server of the quick start."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a hub cache with tiny models under the names of the documents."""
    folder = tmp_path_factory.mktemp("hub")
    checkpoints = folder / "checkpoints"
    vision_model = make_vision_model("qwen2.5-vl", checkpoints / "vision")
    for name, path in {**make_models(checkpoints), "Qwen/Qwen2.5-VL-7B-Instruct": vision_model.path}.items():
        model = folder / ("models--" + name.replace("/", "--"))
        (model / "refs").mkdir(parents=True)
        (model / "refs" / "main").write_text(REVISION)
        (model / "snapshots").mkdir()
        (model / "snapshots" / REVISION).symlink_to(path)
    return folder


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("document", CELLS)
def test_the_cells_of(document: str, hub: Path, tmp_path: Path) -> None:
    cells = [(name, text) for name, _, text in cells_of(document) if (document, name) not in EXCLUDED]
    if any(str(PORT) in text for _, text in cells) and not is_free(PORT):
        pytest.skip(f"the document's port {PORT} is in use")
    for pattern, replacement in REPAIRS.items():
        cells = [(name, re.sub(pattern, replacement, text)) for name, text in cells]
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    (tmp_path / "example_image.png").write_bytes(png(64, 48))
    # unset Triton's variables of the kernel tests: one document selects its attention backend
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "TRITON_INTERPRET")}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub), "OMP_NUM_THREADS": "1"}
    environment |= {"XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(MODULES)}
    runner = [sys.executable, str(Path(__file__).with_name("run_document.py")), "cells.json"]
    done = subprocess.run(
        runner, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.stdout.splitlines()[-1] == str(len(cells))
