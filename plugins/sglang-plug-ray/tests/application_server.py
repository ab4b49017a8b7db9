"""A Ray cluster of this machine with the Serve application, for tests: ``application_server.py PORT ARGUMENTS``.

Each line on standard input is JSON with the arguments of an update. Ends when its standard input does.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from sglang_plug_ray.cluster import join, prepare
from sglang_plug_ray.settings import Settings


def main(port: str, arguments: str) -> None:
    """Start the application, then apply updates."""
    prepare()
    join(Settings(cluster_cpus=8), 1)
    from ray import serve

    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    deploy(json.loads(arguments))
    for line in sys.stdin:
        deploy(json.loads(line))
    serve.shutdown()


def deploy(arguments: dict[str, Any]) -> None:
    """Deploy the application, and report when it runs."""
    from ray import serve
    from sglang_plug_ray.application import application
    from sglang_plug_ray.arguments import Arguments

    serve.run(application(Arguments.model_validate(arguments)), name="llm")
    print("RUNNING", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
