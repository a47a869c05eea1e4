"""The content of a configuration file as text: its size, its encoding, places in it."""

from __future__ import annotations

from gpunode.core.errors import InputError

LIMIT = 1 << 20  # bytes: no engine's configuration is that large; what is, is something else


def check_size(path: str, data: bytes) -> None:
    """Raise InputError for a file no engine's configuration should be."""
    if len(data) > LIMIT:
        raise InputError(
            f"{path} has {len(data)} bytes",
            expected=f"a configuration of at most {LIMIT} bytes",
            fix="look into the file: it is probably not a configuration",
        )


def place(text: str, offset: int) -> str:
    """LINE:COLUMN of a character offset, both from 1."""
    line = text.count("\n", 0, offset) + 1
    return f"{line}:{offset - text.rfind(chr(10), 0, offset)}"


def decode(path: str, data: bytes) -> str:
    """UTF-8 text of a file; InputError for one that is too large, and with the place of the first byte that is not."""
    check_size(path, data)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        where = place(data[: error.start].decode("latin-1"), error.start)
        raise InputError(f"{path}:{where}: byte {data[error.start]:#04x} is not UTF-8", expected="UTF-8 text") from None
