"""Options of replicas: several engines behind one server."""

from __future__ import annotations

from .option import Group, option

REPLICAS = Group(
    "replicas",
    (
        option(
            "--replicas --dp-size --data-parallel-size --dp",
            "replicas",
            "engines that each serve the whole model, each on a device of its own, or on some of a CPU's cores; one "
            "that dies is started again, at most 3 times in 10 minutes, while the others serve",
            int,
            least=1,
            most=1024,
        ),
        option(
            "--prefill-replicas",
            "prefill_replicas",
            "further engines that compute prompts and send their keys and values to the --replicas, which generate; 0: "
            "each engine computes its prompts itself",
            int,
            least=0,
            most=1024,
        ),
        option("--deployment", "deployment", "where engines run", component="deployment"),
        option(
            "--routing-policy --load-balance-method",
            "routing_policy",
            "policy that chooses the replica of a request",
            component="routing",
        ),
    ),
)
