"""Servers of which some compute prompts (``--role prefill``) for others, which generate (``--role decode``)."""
