"""The names of blocks on the server, and the generation that is part of them.

::

    sglang-plug:9f31c0de5a7b1e22:generation              4283920384
    sglang-plug:9f31c0de5a7b1e22:4283920384:KEY          a block; KEY in hexadecimal

Increasing the number makes all earlier blocks unreachable at once, for all servers. It begins at random: if the server
loses it, no earlier number comes back.
"""

from __future__ import annotations

import secrets

from .connections import Session

RANDOM_BITS = 60


class Names:
    """Makes the names.

    Args:
        prefix: of all names; has no characters that patterns of Redis give a meaning.
        secret_id: see ``Seal.id``.
    """

    def __init__(self, prefix: str, secret_id: str) -> None:
        self._base = f"{prefix}:{secret_id}:".encode()

    @property
    def generation_name(self) -> bytes:
        """The name of the number of the generation."""
        return self._base + b"generation"

    @property
    def pattern(self) -> bytes:
        """A pattern of the names of all blocks."""
        return self._base + b"*:*"

    def block(self, generation: bytes, key: bytes) -> bytes:
        """Return the name of the block with ``key``."""
        return b"%s%s:%s" % (self._base, generation, key.hex().encode())

    def is_of(self, name: bytes, generation: bytes) -> bool:
        """Report whether ``name`` is one of a block of ``generation``."""
        return name.startswith(b"%s%s:" % (self._base, generation))

    def generation(self, session: Session) -> bytes:
        """Return the number of the current generation; the first one to ask begins one."""
        (number,) = session.call(("GET", self.generation_name))
        return self._begin(session) if number is None else bytes(number)

    def next_generation(self, session: Session) -> None:
        """Begin another generation."""
        self.generation(session)
        session.call(("INCR", self.generation_name))

    def _begin(self, session: Session) -> bytes:
        number = str(secrets.randbits(RANDOM_BITS)).encode()
        _, number = session.call(("SET", self.generation_name, number, "NX"), ("GET", self.generation_name))
        return bytes(number)
