"""The contracts between the engine and plugins; their public names are those of ``sglang_plug``."""
