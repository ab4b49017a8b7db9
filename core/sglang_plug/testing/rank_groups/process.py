"""A worker of the conformance test of executors: ``python -m sglang_plug.testing.rank_groups.process``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from sglang_plug.config import PluginOptions
from sglang_plug.contracts.serving.executor import Executor
from sglang_plug.plugins.attribution import make
from sglang_plug.plugins.registry import Plugins
from sglang_plug.system.child_process import leave_signals_to_parent
from sglang_plug.system.process_exit import ParentWatch, exit_process

from .worker import WorkerLaunch, follow


def main() -> int:
    """Run the worker until it is told to end, or until the test's process is gone."""
    leave_signals_to_parent()
    launch = WorkerLaunch(**json.loads(sys.stdin.buffer.readline()))
    ParentWatch(1)
    component = Plugins.discover(PluginOptions()).get("executor", launch.executor)
    executor: Executor = make(component, component.settings(), base=Executor)
    device = torch.device(launch.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        endpoint = executor.join(launch.rank, launch.size, device, launch.rendezvous)
        follow(launch.rank, launch.size, endpoint, device, Path(launch.folder))
    except Exception as error:
        print(f"rank {launch.rank}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    exit_process(main())
