"""The options of the HTTP server: a part of ``option_table``."""

from __future__ import annotations

from .config import NO_PARSER
from .option import Group, option

HTTP = Group(
    "HTTP server",
    (
        option("--host", "host", "address to listen on"),
        option("--port", "port", "port to listen on; 0 lets the system choose", int, minimum=0, maximum=65535),
        option(
            "--api-key",
            "api_keys",
            "bearer token that requests must carry; repeatable, or several separated by commas",
            tuple,
            metavar="TOKEN",
        ),
        option("--admin-api-key", "admin_api_key", "bearer token of the administrative routes", metavar="TOKEN"),
        option(
            "--fairness-key",
            "fairness_key",
            "what identifies a caller for fair scheduling: api-key, user (the field of the request) or header:NAME; "
            "auto: api-key, and user on a server without API keys",
            metavar="KIND",
        ),
        option(
            "--key-weight",
            "key_weights",
            "scheduling weight of a caller (an API key, user or value of the header) relative to others, whose weight "
            "is 1; repeatable, or several separated by commas",
            tuple,
            metavar="KEY=WEIGHT",
        ),
        option(
            "--tenant-isolation",
            "tenant_isolation",
            "share the prefix cache only between requests with the same API key",
            bool,
        ),
        option(
            "--allow-origins",
            "allow_origins",
            "origin whose pages may call the server from a browser, or *; repeatable, or several separated by commas",
            tuple,
            metavar="ORIGIN",
        ),
        option(
            "--allowed-hosts",
            "allowed_hosts",
            "host name by which the server may be called (example.com, *.example.com, example.com:8080, *); repeatable,"
            " or several separated by commas; IP addresses and localhost are always allowed; if unset, a server on a "
            "loopback address allows no other name, and any other server allows every name",
            tuple,
            metavar="HOST",
        ),
        option(
            "--tool-call-parser",
            "tool_call_parser",
            "parser of tool calls in outputs; auto selects it by the chat template",
            component="tool-parser",
            others=(NO_PARSER,),
        ),
        option(
            "--reasoning-parser",
            "reasoning_parser",
            "parser that separates reasoning from the answer",
            component="reasoning-parser",
            others=(NO_PARSER,),
        ),
        option(
            "--sampling-defaults",
            "sampling_defaults",
            "source of the parameters that a request omits: the model's generation_config.json, or OpenAI's defaults",
            choices=("model", "openai"),
        ),
        option(
            "--preferred-sampling-params",
            "preferred_sampling_params",
            "JSON object of native sampling parameters that are used when a request omits them",
            dict,
            metavar="JSON",
        ),
        option("--max-request-bytes", "max_request_bytes", "maximum size of a request body in bytes", int, minimum=1),
        option(
            "--max-sequences-per-request",
            "max_sequences_per_request",
            "maximum number of prompts times n in one request",
            int,
            minimum=1,
        ),
        option("--max-images-per-request", "media.count", "maximum number of images of one prompt", int, minimum=0),
        option(
            "--max-image-tokens", "media.tokens", "maximum number of tokens of all images of one prompt", int, minimum=1
        ),
        option("--max-image-bytes", "media.bytes", "maximum size of an image file in bytes", int, minimum=1),
        option("--max-image-pixels", "media.pixels", "maximum number of pixels of an image", int, minimum=1),
        option(
            "--max-request-image-pixels",
            "media.request_pixels",
            "maximum number of pixels of all images of one prompt",
            int,
            minimum=1,
        ),
        option(
            "--allowed-media-domains",
            "media_sources.domains",
            "host that images may be fetched from (example.com, *.example.com, example.com:8080, *); repeatable, or "
            "several separated by commas; none: no address is fetched",
            tuple,
            metavar="HOST",
        ),
        option(
            "--allowed-media-networks",
            "media_sources.networks",
            "range of private addresses, such as 10.0.0.0/8, that an allowed host may have; repeatable",
            tuple,
            metavar="RANGE",
        ),
        option(
            "--media-fetch-timeout",
            "media_sources.timeout",
            "seconds that fetching an image may take",
            float,
            above=0,
        ),
        option(
            "--allowed-local-media-path",
            "media_sources.folder",
            "folder below which file:// URLs of images are read; if unset, they are refused",
            metavar="FOLDER",
        ),
        option(
            "--max-stored-responses",
            "max_stored_responses",
            "responses stored for previous_response_id, in the memory of this process; 0 disables storage",
            int,
            minimum=0,
        ),
        option(
            "--max-stored-response-bytes",
            "max_stored_response_bytes",
            "maximum total size of the stored responses, in bytes",
            int,
            minimum=1,
        ),
        option("--health-timeout", "health_timeout", "seconds /health_generate waits for a token", float, above=0),
        option("--drain-timeout", "drain_timeout", "seconds for requests in flight after SIGTERM", float, minimum=0),
        option(
            "--engine-restart",
            "engine_restart",
            "start the engine again if it dies, at most 3 times in 10 minutes, instead of ending the server",
            bool,
        ),
        option(
            "--max-connections",
            "max_connections",
            "maximum number of open connections, if the limit of open files allows; above it the longest idle "
            "one is closed",
            int,
            minimum=1,
        ),
        option("--header-timeout", "header_timeout", "seconds a client may take to send its headers", float, above=0),
        option("--body-timeout", "body_timeout", "seconds a client may take to send a request's body", float, above=0),
        option(
            "--send-timeout",
            "send_timeout",
            "seconds after which a client that does not read its response is disconnected",
            float,
            above=0,
        ),
        option(
            "--allow-update-from",
            "allow_update_from",
            "folder below which /update_weights_from_disk and /load_lora_adapter may read (repeatable); none: any",
            tuple,
        ),
        option("--skip-server-warmup", "skip_server_warmup", "be ready without serving a first request", bool),
    ),
)
