"""Probe texts without what names a machine or a person, for bug reports."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection, Mapping

from gpunode.core.late import regex

# sections that name software alone: a host called "debian" or a version 1.2.3.4 must not change them
_STRUCTURAL = frozenset(("os_release", "packages", "tools", "kernels", "pci", "lspci", "dkms", "cuda", "secure_boot"))
_UUID = regex(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_MAC = regex(r"(?<![\w:])[0-9a-fA-F]{2}(?:[:-][0-9a-fA-F]{2}){5}(?![\w:])")
# four numbers up to 255 that are no part of a longer version
_IPV4 = regex(r"(?<![\w.+~-])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w+~-]|\.\w)")
_IPV6 = regex(r"(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){3,7}(?:[0-9a-fA-F]{1,4}|:[0-9a-fA-F]{0,4})(?![\w:.])")
_LOCAL = regex(r"127\.|0\.0\.0\.0|255\.")
_SERIAL = regex(r"(?i)(\bserial(?: number)?\s*[:=]\s*)(\S+)")
_HOSTNAME = regex(r"""(?m)(?:^\| hostname |"hostname": ")([^\s"]+)""")  # in a probe, in facts as JSON
_HOME = regex(r"/home/([^/\s:\"']+)")
_META = regex(r"(?m)^\| ([0-7]{1,5}) (\S+) \d+$")


def redact(text: str) -> str:
    """A probe text with placeholders for host and user names, addresses, UUIDs, serials and the secrets in its files.

    The same thing gets the same placeholder everywhere in one text, and the result parses as before.
    """
    return _redacted({"": text.replace("\r\n", "\n")}, {""}, ())[""]


def redact_texts(texts: Mapping[str, str], *, without: Collection[str] = ()) -> dict[str, str]:
    """Several texts of one machine, redacted alike: probe texts as `redact` does, others as plain text.

    `without` are further words (serial numbers) that get a placeholder wherever they are.
    """
    probes = {name for name, text in texts.items() if text.startswith("#: gpunode-probe ")}
    return _redacted(texts, probes, without)


def _redacted(texts: Mapping[str, str], probes: Collection[str], without: Collection[str]) -> dict[str, str]:
    bodies = [body for name in probes for chunk in _chunks(texts[name]) if (body := _file_text(chunk))]
    replace = _replacer("\n".join([*texts.values(), *bodies]), without)
    return {name: _probe(text, replace) if name in probes else replace(text) for name, text in texts.items()}


def _probe(text: str, replace: Callable[[str], str]) -> str:
    return "".join(
        chunk
        if _section(chunk) in _STRUCTURAL
        else replace(chunk)
        if (body := _file_text(chunk)) is None
        else _file(chunk, body, replace)
        for chunk in _chunks(text)
    )


def _chunks(text: str) -> list[str]:
    return re.split(r"(?m)^(?=#: )", text)


def _section(chunk: str) -> str:
    return chunk.removeprefix("#: ").partition("\n")[0]


def _file_text(chunk: str) -> str | None:
    """The text in a `#: file` section, None when it is another section, or bytes that are no text."""
    if not _section(chunk).startswith("file "):
        return None
    body = "".join(x[2:] for x in chunk.split("\n") if x.startswith("| ") and " " not in x[2:])
    try:
        return base64.b64decode(body, validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def _file(chunk: str, body: str, replace: Callable[[str], str]) -> str:
    """The section with the redacted text: its size and base64 lines are made again."""
    data = replace(body).encode()
    owner = _META.search(chunk)
    if not owner or data == body.encode():
        return chunk
    kept = [x for x in chunk.split("\n") if x and (not x.startswith("| ") or x.startswith("| -> "))]
    mode = f"| {owner[1]} {replace(owner[2])} {len(data)}"
    encoded = [f"| {line}" for line in base64.encodebytes(data).decode().splitlines()]
    return "\n".join([kept[0], mode, *kept[1:], *encoded]) + "\n"


def _replacer(text: str, without: Collection[str]) -> Callable[[str], str]:
    """text → redacted text; `text` is all there is, where the names are found."""
    from gpunode.core.mask import mask

    names = {name: "host-1" for name in _HOSTNAME.findall(text) if name != "localhost"}
    names |= {name.partition(".")[0]: "host-1" for name in names if name.find(".") > 2}  # logs have it without domain
    people = {*re.findall(r"(?m)^\| user (\S+)", text), *_HOME.findall(text)} - {"root"}
    names |= {name: f"user-{i}" for i, name in enumerate(sorted(people), 1)}
    names |= {word: f"serial-{i}" for i, word in enumerate(sorted(without), 1)}
    words = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])") if names else None
    seen: dict[str, str] = {}

    def numbered(pattern: str) -> Callable[[re.Match[str]], str]:
        def placeholder(match: re.Match[str]) -> str:
            if _LOCAL.match(match[0]):
                return match[0]
            alike = sum(value.startswith(pattern.partition("{")[0]) for value in seen.values())
            return seen.setdefault(match[0].lower(), pattern.format(alike + 1))

        return placeholder

    rules = (
        (_UUID, numbered("00000000-0000-0000-0000-{:012d}")),
        (_MAC, numbered("02:00:00:00:00:{:02x}")),
        (_IPV4, numbered("192.0.2.{}")),
        (_IPV6, numbered("2001:db8::{}")),
    )

    def replace(part: str) -> str:
        part = mask(part)
        for pattern, placeholder in rules:
            part = pattern.sub(placeholder, part)
        part = _SERIAL.sub(r"\1serial", part)
        return words.sub(lambda m: names[m[0]], part) if words else part

    return replace
