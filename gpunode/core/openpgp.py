"""OpenPGP public keys as bytes → fingerprints.  Signatures are not looked at (RFC 9580, RFC 4880)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Sequence

from gpunode.core.errors import InputError
from gpunode.core.late import regex

_PUBLIC_KEY = 6  # packet type; 14 is a subkey
_ARMOR = regex(rb"-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\r?\n(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL)


def fingerprints(key: bytes) -> tuple[str, ...]:
    """Fingerprints of all primary keys in `key` (armored or binary), in order: 40 (v4) or 64 (v6) hex digits.

    Raises InputError when it is no OpenPGP public key.
    """
    found = tuple(_fingerprint(body) for block in _blocks(key) for kind, body in _packets(block) if kind == _PUBLIC_KEY)
    if not found:
        raise _not_a_key("it holds no public key")
    return found


def fingerprint(key: bytes) -> str:
    """The fingerprint of the first (as a rule the only) primary key."""
    return fingerprints(key)[0]


def without(key: bytes, gone: Sequence[str]) -> str:
    """The keys of a keyring but those with these fingerprints, armored; "" when none is left.  Raises InputError."""
    kept, keeping = b"", True
    for block in _blocks(key):
        for kind, body in _packets(block):
            if kind == _PUBLIC_KEY:  # what follows up to the next one belongs to it
                keeping = _fingerprint(body) not in gone
            if keeping:
                kept += bytes([0xC0 | kind, 0xFF]) + len(body).to_bytes(4, "big") + body
    return _armored(kept) if kept else ""


def binary(key: bytes) -> bytes:
    """The key or keyring without armor.  Raises InputError."""
    return b"".join(_blocks(key))


def _armored(data: bytes) -> str:
    text = base64.b64encode(data).decode()
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    check = base64.b64encode(_crc24(data).to_bytes(3, "big")).decode()
    return f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{lines}\n={check}\n-----END PGP PUBLIC KEY BLOCK-----\n"


def _crc24(data: bytes) -> int:
    """RFC 4880, 6.1."""
    crc = 0xB704CE
    for octet in data:
        crc ^= octet << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1864CFB
    return crc & 0xFFFFFF


def _blocks(key: bytes) -> Iterator[bytes]:
    if not key:
        raise _not_a_key("it is empty")
    if key[0] & 0x80:
        yield key
        return
    blocks = _ARMOR.findall(key)
    if not blocks:
        start = key.lstrip()[:15].lower()
        raise _not_a_key("it is an HTML page" if start.startswith((b"<!doctype", b"<html")) else "no armor, no packet")
    for block in blocks:
        yield _dearmored(block)


def _dearmored(block: bytes) -> bytes:
    """Armor headers end at the first empty line; the checksum line begins with `=`."""
    lines = [line.strip() for line in block.splitlines()]
    lines = lines[lines.index(b"") + 1 :] if b"" in lines else lines
    text = b"".join(line for line in lines if not line.startswith(b"="))
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise _not_a_key(f"its armor is damaged: {error}") from error


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, body) of each packet, new and old format; partial lengths do not occur with keys."""
    at = 0
    while at < len(data):
        tag = data[at]
        if not tag & 0x80:
            raise _not_a_key(f"byte {at} begins no packet")
        if tag & 0x40:
            kind, (size, at) = tag & 0x3F, _new_length(data, at + 1)
        else:
            kind, (size, at) = tag >> 2 & 0x0F, _old_length(data, at + 1, tag & 3)
        if at + size > len(data):
            raise _not_a_key("it is cut off")
        yield kind, data[at : at + size]
        at += size


def _new_length(data: bytes, at: int) -> tuple[int, int]:
    first = _number(data, at, 1)
    if first < 192:
        return first, at + 1
    if first < 224:
        return (first - 192 << 8) + _number(data, at + 1, 1) + 192, at + 2
    if first == 255:
        return _number(data, at + 1, 4), at + 5
    raise _not_a_key("a packet of partial length")


def _old_length(data: bytes, at: int, kind: int) -> tuple[int, int]:
    if kind == 3:
        return len(data) - at, at
    width = 1 << kind
    return _number(data, at, width), at + width


def _number(data: bytes, at: int, width: int) -> int:
    if at + width > len(data):
        raise _not_a_key("it is cut off")
    return int.from_bytes(data[at : at + width], "big")


def _fingerprint(body: bytes) -> str:
    version = body[0] if body else 0
    if version == 4:
        # SHA-1 is the definition of a v4 fingerprint (RFC 9580, 5.5.4.2)
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False).hexdigest().upper()
    if version == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise _not_a_key(f"a key of version {version}")


def _not_a_key(why: str) -> InputError:
    return InputError(
        f"not an OpenPGP public key: {why}",
        expected="an armored block (-----BEGIN PGP PUBLIC KEY BLOCK-----) or the binary form",
        fix="look at what the URL or file really holds",
    )
