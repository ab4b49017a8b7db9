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
            minimum=1,
            maximum=1024,
        ),
        option(
            "--prefill-replicas",
            "prefill_replicas",
            "further engines that compute prompts and send their keys and values to the --replicas, which generate; 0: "
            "each engine computes its prompts itself",
            int,
            minimum=0,
            maximum=1024,
        ),
        option(
            "--role --disaggregation-mode",
            "role",
            "make a server of one role, on one machine or several: prefill computes prompts for decode servers, decode "
            "generates from what --prefill-servers compute; both need the secret SGLANG_PLUG_TRANSFER_SECRET, or --set "
            "transfer.secret_file=FILE",
            choices=("prefill", "decode"),
        ),
        option(
            "--prefill-port --disaggregation-bootstrap-port",
            "prefill_port",
            "port of --host at which a prefill server listens for decode servers; 0: the system chooses",
            int,
            minimum=0,
            maximum=65535,
        ),
        option(
            "--prefill-servers",
            "prefill_servers",
            "HOST:PORT of each prefill server, with its --prefill-port; while none is reachable, the decode "
            "server computes prompts itself",
            tuple,
            metavar="HOST:PORT",
        ),
        option("--deployment", "deployment", "where engines run", component="deployment"),
        option(
            "--routing-policy --load-balance-method",
            "routing_policy",
            "policy that chooses the replica of a request",
            component="routing",
            aliases=(("round_robin", "round-robin"), ("total_tokens", "least-tokens")),
        ),
    ),
)
