"""Recordings of greedy tokens and log-probabilities of a tiny model of each family, from the offline engine."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.vision_families import FAMILIES as VISION_FAMILIES
from tests.e2e.vision_models import png

from .exchanges import Output
from .models import POOLING, makers
from .placeholders import Placeholders
from .serving import Tree

ENGINE = Path(__file__).with_name("offline_engine.py")
TIMEOUT = 900.0
PROMPTS = [[5], [3, 17, 90, 41, 22, 8, 77, 60, 12], [(7 * position + 3) % 93 + 2 for position in range(70)]]
"""Prompts of token ids in every vocabulary; the last one is longer than the sliding windows of the models."""


def record_families(tree: Tree, output: Output, placeholders: Placeholders) -> None:
    """Write all checkpoints, serve one after the other in one process of the tree, and record the answers."""
    folder = tree.folder("families")
    jobs = [_job(name, str(make())) for name, make in makers(folder).items()]
    plan, results = folder / "plan.json", folder / "found.jsonl"
    plan.write_text(json.dumps(jobs), encoding="utf-8")
    command = [tree.python, str(ENGINE), str(plan), str(results)]
    log = folder / "log.txt"
    with log.open("wb") as errors:
        done = subprocess.run(
            command, cwd=folder, env=tree.environment(), stdout=errors, stderr=errors, timeout=TIMEOUT, check=False
        )
    if done.returncode:
        raise RuntimeError(
            f"the offline engine ended with {done.returncode}:\n{log.read_text(errors='replace')[-3000:]}"
        )
    for line in results.read_text(encoding="utf-8").splitlines():
        (text,) = placeholders.exchange("", line)
        record = json.loads(text)
        output.write(f"family/{record.pop('family')}", record)


def _job(name: str, folder: str) -> dict[str, Any]:
    """Return the job of the offline engine for a checkpoint."""
    job: dict[str, Any] = {"family": name, "path": folder, "pooling": name in POOLING}
    if name.endswith(" with images"):
        family = VISION_FAMILIES[name.removesuffix(" with images")]
        job["prompt"] = f"{family.in_text}Who is in the image?"
        job["image"] = base64.b64encode(png(64, 24, 1)).decode()
    else:
        job["tokens"] = PROMPTS
    return job
