"""``sglang-plug detect-watermark``: count the green tokens of a text."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_plug import AUTO, ConfigError, Facts, Plugins, Tokenizer, TokenizerSource

from .fields import GAMMA, KEY
from .greenlist import detect

THRESHOLD = 4.0
"""The paper's threshold: three of 100,000 texts without a watermark have a higher z-score."""


class DetectWatermark:
    """Tests a text, or a list of tokens, for the watermark. The exit status is 0 if there is one, else 1."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add the flags."""
        parser.add_argument(
            "file", metavar="FILE", nargs="?", default="-", help="file with the text; '-': standard input"
        )
        parser.add_argument(
            "--model-path", metavar="FOLDER", default=AUTO, help="model whose tokenizer produced the text"
        )
        parser.add_argument("--tokenizer-mode", metavar="NAME", default=AUTO, help="tokenizer mode of the server")
        parser.add_argument("--tokens", action="store_true", help="the file is a JSON list of token ids")
        parser.add_argument(
            "--key",
            type=int,
            default=KEY,
            help="watermark key: the server's setting watermark.key, or the key of the request",
        )
        parser.add_argument(
            "--gamma", type=float, default=GAMMA, help="fraction of green tokens; the gamma of the request"
        )
        parser.add_argument(
            "--threshold", type=float, default=THRESHOLD, help="z-score above which a text counts as watermarked"
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Print the result. Raises ``ConfigError`` for an invalid ``--gamma`` or an unreadable file."""
        if not 0.0 < options.gamma < 1.0:
            raise ConfigError(f"--gamma must be between 0 and 1, got {options.gamma}")
        detection = detect(_tokens(options, plugins), options.key, options.gamma)
        is_marked = detection.z_score > options.threshold
        values = {
            "watermarked": is_marked,
            "z_score": round(detection.z_score, 3),
            "p_value": detection.p_value,
            "green": detection.green,
            "counted": detection.counted,
        }
        if options.json:
            print(json.dumps(values))
        else:
            for name, value in values.items():
                print(f"{name:12} {value}")
        return 0 if is_marked else 1


def _tokens(options: argparse.Namespace, plugins: Plugins) -> Sequence[int]:
    try:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{options.file!r} cannot be read: {error}") from error
    if not options.tokens:
        return _tokenizer(options, plugins).encode(text, special=False)
    try:
        tokens = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{options.file!r} is not JSON: {error}") from error
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise ConfigError(f"{options.file!r} is not a list of token ids")
    return tokens


def _tokenizer(options: argparse.Namespace, plugins: Plugins) -> Tokenizer:
    folder = options.model_path
    if folder == AUTO:
        folder = plugins.choose("model-path", Facts())
    if folder is None or not Path(folder).is_dir():
        raise ConfigError(f"--model-path: there is no folder {folder!r}")
    load = plugins.resolve("tokenizer", options.tokenizer_mode, Facts()).load()
    tokenizer: Tokenizer = load(TokenizerSource(path=Path(folder), chats=False))
    return tokenizer


command = DetectWatermark()
