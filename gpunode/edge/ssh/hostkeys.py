"""known_hosts: which keys a host may show, where that is written, and adding a key."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
import os
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path

from gpunode.core.errors import UnreachableError
from gpunode.core.late import dataclass

_APPEND = threading.Lock()


class HostKeyUnknown(UnreachableError):
    """No known_hosts file has a key of this host."""


class HostKeyChanged(UnreachableError):
    """The host shows a key that known_hosts contradicts or revokes."""


@dataclass(frozen=True, kw_only=True)
class KnownKey:
    """One line of a known_hosts file that speaks of the host.  `marker` is "", "@revoked" or "@cert-authority"."""

    file: str
    line: int
    marker: str
    kind: str  # ssh-ed25519, ssh-rsa, …
    key: str  # base64


def known_keys(files: Sequence[str], name: str) -> tuple[KnownKey, ...]:
    """The lines for `name` (host, or [host]:port) in known_hosts files; a file that is not there counts as empty."""
    found = []
    for file in files:
        try:
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            fields = line.split()
            if not fields or fields[0].startswith("#"):
                continue
            marker = fields.pop(0) if fields[0].startswith("@") else ""
            if len(fields) >= 3 and _speaks_of(fields[0], name):
                found.append(KnownKey(file=file, line=number, marker=marker, kind=fields[1], key=fields[2]))
    return tuple(found)


def _speaks_of(patterns: str, name: str) -> bool:
    """Does the first field of a known_hosts line name the host: hashed, or patterns with * ? and ! (sshd(8))."""
    if patterns.startswith("|1|"):
        salt, _, digest = patterns[3:].partition("|")
        try:
            wanted = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
            return hmac.compare_digest(wanted, base64.b64decode(digest))
        except ValueError:  # a damaged line speaks of nobody
            return False
    matches = False
    for pattern in patterns.lower().split(","):
        # a [ stands for itself here, for fnmatch it would open a set
        plain = pattern.removeprefix("!").replace("[", "[[]")
        if fnmatch.fnmatchcase(name.lower(), plain):
            if pattern.startswith("!"):
                return False
            matches = True
    return matches


def check_host_key(
    known: Sequence[KnownKey], *, host: str, name: str, kind: str, key: str, files: Sequence[str], accept_new: bool
) -> bool:
    """True when the key the host showed is a new one to be added; raises HostKeyUnknown or HostKeyChanged.

    `host` is how the user calls it, `name` its entry in known_hosts, `kind` and `key` what it showed.
    """
    print_ = fingerprint(key)
    same = [k for k in known if k.key == key]
    for entry in same:
        if entry.marker == "@revoked":
            raise HostKeyChanged(
                f"{host}: the host key {kind} {print_} is marked as revoked in {entry.file} line {entry.line}",
                fix="do not trust this host before its administrator has given it a new key",
            )
    if any(not entry.marker for entry in same):
        return False
    others = [k for k in known if not k.marker]
    if others:
        old = next((k for k in others if k.kind == kind), others[0])
        raise HostKeyChanged(
            f"{host}: the host key has changed: it shows {kind} {print_}",
            expected=f"{old.kind} {fingerprint(old.key)}, from {old.file} line {old.line}",
            fix="find out why: a new installation, or another machine in between.  When the new key is right: "
            f"ssh-keygen -f {shlex.quote(old.file)} -R {shlex.quote(name)}",
        )
    if accept_new:
        return True
    raise HostKeyUnknown(
        f"{host}: the host key {kind} {print_} is unknown",
        expected=f"a line for {name} in {' or '.join(files) or 'a known_hosts file'}",
        fix="compare the fingerprint with the host's own (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then "
        "repeat with --accept-new-host-keys",
    )


def add_host_key(file: str, *, name: str, kind: str, key: str, hashed: bool) -> None:
    """Append a host key to a known_hosts file (made 0600, its folder 0700); what is in it stays."""
    path = Path(file)
    if str(path) == os.devnull:
        return
    if hashed:
        salt = os.urandom(20)
        digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
        name = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    with _APPEND:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(path, "ab+", opener=lambda p, flags: os.open(p, flags, 0o600)) as out:
                size = out.seek(0, os.SEEK_END)
                out.seek(max(0, size - 1))
                start = b"\n" if size and out.read(1) != b"\n" else b""
                out.write(start + f"{name} {kind} {key}\n".encode())
        except OSError as error:
            raise UnreachableError(
                f"cannot add the host key to {file}: {error.strerror}", fix="make the file writable, or add it by hand"
            ) from error


def fingerprint(key: str) -> str:
    """SHA256:… of a base64 host key, as ssh-keygen -l prints it."""
    try:
        raw = base64.b64decode(key)
    except ValueError:
        return "(unreadable key)"
    return "SHA256:" + base64.b64encode(hashlib.sha256(raw).digest()).decode().rstrip("=")
