"""Hide the values of secrets in text that is shown, logged or kept: configs of any kind, diffs, logs, command lines.

It errs on the side of hiding: what follows the name of a secret is hidden up to the end of the value, the line or the
indented block.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpunode.core.errors import GpunodeError
from gpunode.core.late import regex

HIDDEN = "********"

# Part of a key's name that makes its value a secret.  `key` alone does not: repository keys and their paths are public.
_WORDS = (
    r"(?:auths?|authorization|passw(?:or)?ds?|passphrase|pwd|secrets?|(?:identity|registry)?tokens?|credentials?|"
    r"become_pass|ssh_pass|(?:api|access|private|secret)[_-]?keys?)"
)
# Of the two repeats one is bounded, else both of them try every part of a long name: a file of `auth_` takes hours.
_NAME = rf"(?i:(?:[a-z0-9_.-]*[_.-]|pg)?{_WORDS}(?:[_-][a-z0-9]+){{0,9}})"
_CAMEL = r"[A-Za-z0-9_.-]*[a-z0-9](?:Auth|Passw(?:or)?d|Passphrase|Secret|Token|Credentials?|(?:Api|Access|Private)Key)"
_KEY = rf"(?:{_NAME}|{_CAMEL})"
_HEAD = regex(rf"(?<![A-Za-z0-9_.-])(?P<q>[\"']?){_KEY}(?P=q)(?:\"\]|'\])?[ \t]*(?:=>|[=:])[ \t]*")
_OPTION = regex(rf"(?<![A-Za-z0-9_.-])--?{_KEY}[ \t]+(?=[^-\s])")
_SCHEME = regex(r"\b(?i:basic|bearer)[ \t]+(?P<value>[A-Za-z0-9+/=._~-]{8,})")
# tokens that are known by their beginning: NVIDIA's NGC, Hugging Face, GitHub, GitLab
_TOKEN = regex(r"\b(?:(?:nvapi-|glpat-)[A-Za-z0-9_-]{16,}|(?:hf_|gh[opsu]_)[A-Za-z0-9]{16,})")
# the signature of an address that is valid for a while: Azure, AWS, Google, CloudFront
_SIGNED = regex(
    r"(?i:(?<=[?&])((?:(?:x-(?:amz|goog)-)?(?:signature|security-token|credential)|sig|key-pair-id)=))[^\s&\"'<>]+"
)
# curl -u USER:PASSWORD, and sshpass -p PASSWORD, docker login -pPASSWORD; -u 1000:1000 names a group
_USER = regex(r"(?<!\S)(-u|--(?:proxy-)?user)([ =]+[\"']?)(?!\d+:\d+(?!\S))[^\s:\"']+:[^\s\"']+")
_LOGGED_IN = regex(r"\b((?:sshpass|(?:docker|podman|nerdctl|crictl) login)(?: \S{1,256}){0,5}? -p) ?[^\s-]\S*")
# a line of netrc(5)
_NETRC = regex(
    r"^([ \t]*(?:(?:machine|login|account)[ \t]+\S+[ \t]+|default[ \t]+){0,4}password[ \t]+)\S+[ \t]*$", re.MULTILINE
)
_URL = regex(r"(?<=://)[^\s\"'<>]+")
# user:password@proxy:3128, without a scheme
_LOGIN = regex(r"(?<![^\s\"'=])[A-Za-z0-9._%+-]{1,256}:[^\s\"'/@][^\s\"'@]{0,256}(?=@[A-Za-z0-9.-]{1,256}:\d)")
# of what a message quotes: all up to the last @, as a password may hold a slash; and user:password@ without a scheme
_QUOTED_URL = regex(
    r"(?<=://)\S*(?=@)|(?<=:/)[^/\s]\S*(?=@)|(?<![^\s\"'`=,;(\[/])[^\s:/@\"'`=,;(\[]+:(?!/)[^\s@]+(?=@)"
)
# a string of JSON, or of TOML in the same quotes, on one line: what is within it ends with it
_MEMBER = regex(r'(?<![^\s\[{(,:=])"(?:[^"\\\n]|\\.)*"(?=[ \t\r]*(?:[\],}:#]|$))', re.MULTILINE)
_PEM = regex(
    r"(-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----).*?(-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_TRIPLE = regex(r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\Z)|\'\'\'.*?(?:\'{3,5}|\Z)', re.DOTALL)
_STRING = regex(r'"(?:[^"\\]|\\.)*(?:"|\Z)|\'[^\']*(?:\'|\Z)', re.DOTALL)
_BLOCK = regex(r"(?:[|>][-+0-9]*)?[ \t]*(?:#[^\n]*)?\r?\n")
_MARGIN = regex(r"[ \t]*(?:[-+][ \t]*)*")


def mask(text: str) -> str:
    """The text with ******** in place of passwords, tokens, private keys and what else names itself a secret.

    >>> mask('password = "hunter2"  # mine')
    'password = "********"  # mine'
    >>> mask("proxy: http://me:hunter2@proxy:3128")
    'proxy: http://********@proxy:3128'
    """
    text = _PEM.sub(rf"\1\n{HIDDEN}\n\2", text)
    text = _hide(text, _HEAD)
    text = _hide(text, _OPTION)
    text = _TOKEN.sub(HIDDEN, _SIGNED.sub(rf"\1{HIDDEN}", text))
    text = _NETRC.sub(rf"\1{HIDDEN}", _LOGGED_IN.sub(rf"\1 {HIDDEN}", _USER.sub(rf"\1\2{HIDDEN}", text)))
    text = _LOGIN.sub(HIDDEN, _URL.sub(lambda match: "://".join(map(_without_login, match[0].split("://"))), text))
    return _SCHEME.sub(lambda match: match[0][: match.start("value") - match.start()] + HIDDEN, text)


def mask_quoted(text: str) -> str:
    """`mask` for a message that quotes what stands in a file: all that is in front of an @ is hidden as well.

    >>> mask_quoted("hosts holds tcp://me:a/b@host")
    'hosts holds tcp://********@host'
    """
    return mask(re.sub(r"\S+", lambda word: _quoted(word[0]), text))


@contextmanager
def masked_errors() -> Iterator[None]:
    """No secret of a person's file in an error, whatever of the file it quotes."""
    try:
        yield
    except GpunodeError as error:
        what, expected, fix = map(mask_quoted, (error.what, error.expected, error.fix))
        raise type(error)(what, expected=expected, fix=fix) from None


def _quoted(word: str) -> str:
    if len(word) > 2000:
        return HIDDEN + word[word.rfind("@") :] if "@" in word else word
    return _QUOTED_URL.sub(HIDDEN, word) if "@" in word else word


def shown(value: Any, *names: str) -> str:
    """A value of a file, in a sentence: short, and without secrets.  `names` are the keys that lead to it.

    >>> shown("https://me:hunter2@mirror"), shown("hunter2", "log-opts", "splunk-token"), shown([1])
    ('"https://********@mirror"', '"********"', 'a list')
    """
    if isinstance(value, dict | list):
        return "a list" if type(value) is list else "an object"
    if value not in (None, "") and not isinstance(value, bool) and any(re.fullmatch(_KEY, name) for name in names):
        value = HIDDEN
    if isinstance(value, str):
        value = mask_quoted(value)
    text = json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace").decode()
    return text if len(text) <= 60 else f"{text[:59]}…"


def _without_login(address: str) -> str:
    """What stands behind ://, without user and password; a password may have slashes in it."""
    slash = address.find("/") if "/" in address else len(address)
    at = address.rfind("@", 0, slash)
    if at < 0 and ":" in address[:slash]:
        at = address.find("@")
    return address if at < 0 else HIDDEN + address[at:]


def _hide(text: str, head: re.Pattern[str]) -> str:
    parts = []
    at = 0
    strings = _strings(text)
    string = next(strings)
    while match := head.search(text, at):
        start, end = _span(text, match)
        while string[1] <= match.start():
            string = next(strings)
        if string[0] < match.start() and match.end() < string[1]:  # the key stands in a string, with its value
            end = min(end, string[1] - 1)
        parts += [text[at:start], HIDDEN if text[start:end].strip() else ""]
        at = max(end, match.end())
        if end < match.end():
            parts.append(text[end : match.end()])
    return "".join([*parts, text[at:]])


def _strings(text: str) -> Iterator[tuple[int, int]]:
    """Where the strings on one line stand, quotes included, and one behind the end of the text."""
    yield from (one.span() for one in _MEMBER.finditer(text))
    yield len(text) + 1, len(text) + 1


def _span(text: str, match: re.Match[str]) -> tuple[int, int]:
    """Start and end of the value behind a key, without its quotes."""
    at = match.end()
    block = _BLOCK.match(text, at)
    if block:
        json_value = re.compile(r"\s*[\"'\[{]").match(text, at) if text[match.start()] in "\"'" else None
        if json_value is None:
            return block.end(), _block_end(text, match.start(), block.end())
        at = json_value.end() - 1
    mark = text[at : at + 1]
    if mark and mark in "\"'":
        quoted = _TRIPLE.match(text, at) or _STRING.match(text, at)
        width = 3 if text.startswith(mark * 3, at) else 1
        end = quoted.end() if quoted else len(text)
        return at + width, max(at + width, end - width if text.endswith(mark, at + width, end) else end)
    if mark and mark in "[{":
        return at + 1, _bracket_end(text, at)
    line = text.find("\n", at)
    return at, len(text) if line < 0 else line


def _bracket_end(text: str, at: int) -> int:
    """Where the bracket that closes the one at `at` stands, the end of the text where it is not closed."""
    depth = 0
    while at < len(text):
        mark = text[at]
        if mark in "\"'":
            quoted = _TRIPLE.match(text, at) or _STRING.match(text, at)
            at = quoted.end() if quoted else len(text)
            continue
        if mark == "#" and text[at - 1].isspace():  # a comment, whose brackets do not count
            at = text.find("\n", at) + 1 or len(text)
            continue
        depth += (mark in "[{") - (mark in "]}")
        if depth == 0:
            return at
        at += 1
    return at


def _block_end(text: str, key: int, at: int) -> int:
    """End of the lines that are indented deeper than the line of the key (YAML blocks, lists and continued lines)."""
    margin = _width(text, text.rfind("\n", 0, key) + 1)
    end = at
    while at < len(text):
        stop = text.find("\n", at) + 1 or len(text)
        line = text[at:stop]
        if line.strip():
            listed = line.lstrip(" \t+-") != line.lstrip(" \t") and _width(text, at) >= margin
            if _width(text, at) <= margin and not listed:
                break
            end = stop - line.endswith("\n")
        at = stop
    return end


def _width(text: str, at: int) -> int:
    match = _MARGIN.match(text, at)
    return match.end() - at if match else 0
