"""Flags among the words that a daemon was started with, as Go's flag libraries read them."""

from __future__ import annotations

from collections.abc import Sequence


def flag_values(words: Sequence[str], *names: str) -> list[str]:
    """Each value of --name=VALUE or --name VALUE, in order.

    >>> flag_values(["--config=/a", "-c", "/b", "--debug"], "--config", "-c")
    ['/a', '/b']
    """
    parts = [word.partition("=") for word in words]
    return [
        value if equals else "".join(words[at + 1 : at + 2])
        for at, (name, equals, value) in enumerate(parts)
        if name in names
    ]


def flag_value(words: Sequence[str], *names: str) -> str:
    """The value that counts, which is the last one; "" when the flag is not given."""
    return next(reversed(flag_values(words, *names)), "")
