"""The options of ``sglang-plug serve``: flags, environment variables and the YAML file."""
