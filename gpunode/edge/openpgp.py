"""Signatures, by GnuPG: checked against keys whose fingerprints are known, and made with a key for once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.late import dataclass
from gpunode.core.openpgp import binary

KEY_KIND = "rsa3072"  # every apt, rpm and zypper that is still served takes it
_FIX = "apt-get install gnupg gpgv, or dnf install gnupg2"


def signed_text(clearsigned: bytes, keys: Sequence[bytes], fingerprints: Sequence[str], where: str) -> bytes:
    """The text of a clear-signed file whose signature is one of these keys'.  Raises RefusedError."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "signed").write_bytes(clearsigned)
        _gpgv(Path(folder), keys, fingerprints, where, "--output", f"{folder}/text", f"{folder}/signed")
        return (Path(folder) / "text").read_bytes()


def check_signature(
    data: bytes, signature: bytes, keys: Sequence[bytes], fingerprints: Sequence[str], where: str
) -> str:
    """The fingerprint whose detached signature fits.  Raises RefusedError."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("data", data), ("signature", signature)):
            (Path(folder) / name).write_bytes(content)
        return _gpgv(Path(folder), keys, fingerprints, where, f"{folder}/signature", f"{folder}/data")


def _gpgv(folder: Path, keys: Sequence[bytes], fingerprints: Sequence[str], where: str, *words: str) -> str:
    ring = folder / "keys.gpg"
    ring.write_bytes(b"".join(binary(key) for key in keys))
    done = _run("gpgv", "--status-fd", "1", "--keyring", str(ring), *words)
    lines = [
        line.split()[1:] for line in done.stdout.decode(errors="replace").splitlines() if line.startswith("[GNUPG:]")
    ]
    status_words = {line[0] for line in lines if line}
    valid = [line[-1] for line in lines if line and line[0] == "VALIDSIG"]  # the last word is the primary key
    good = [one for one in valid if one in fingerprints]
    if good and not status_words & {"BADSIG", "REVKEYSIG", "EXPKEYSIG", "EXPSIG"}:
        return good[0]
    reason = "it is signed by " + ", ".join(valid) if valid else _why(status_words)
    raise RefusedError(
        f"the signature of {where} is not to be trusted: {reason}",
        expected=f"a signature of {' or '.join(fingerprints) or 'a known key'}",
        fix="compare the key's fingerprint with what the vendor publishes; a mirror that signs itself needs "
        "sources.NAME.key and fingerprint",
    )


def _why(printed: set[str]) -> str:
    reasons = {
        "BADSIG": "its bytes were changed",
        "EXPKEYSIG": "its key has expired",
        "EXPSIG": "it has expired",
        "REVKEYSIG": "its key was revoked",
        "NO_PUBKEY": "it is by another key",
    }
    return next((words for word, words in reasons.items() if word in printed), "there is none that can be read")


@dataclass(frozen=True, kw_only=True)
class Signer:
    """A key that lives as long as its home."""

    home: Path
    fingerprint: str
    public: bytes

    def clearsigned(self, data: bytes) -> bytes:
        return self._sign("--clearsign", data)

    def signature(self, data: bytes) -> bytes:
        """Armored and detached."""
        return self._sign("--armor", data, "--detach-sign")

    def _sign(self, word: str, data: bytes, *more: str) -> bytes:
        return _gpg(self.home, "--local-user", self.fingerprint, "--digest-algo", "SHA512", word, *more, data=data)


@contextlib.contextmanager
def signer(owner: str) -> Iterator[Signer]:
    """A new key; its secret half is gone afterwards, so that nobody can sign anything else with it."""
    with gpg_home() as home:
        yield new_key(home, owner)


def new_key(home: Path, owner: str) -> Signer:
    """A key without passphrase, good for signing only."""
    _gpg(home, "--passphrase", "", "--quick-generate-key", owner, KEY_KIND, "sign", "never")
    listed = _gpg(home, "--with-colons", "--list-keys", f"={owner}").decode()
    fingerprint = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))
    return Signer(home=home, fingerprint=fingerprint, public=_gpg(home, "--armor", "--export", fingerprint))


@contextlib.contextmanager
def gpg_home() -> Iterator[Path]:
    """A folder for keys until the end of the block: near the root, as the path of an agent's socket has 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="gpg-", dir="/tmp") as folder:
        try:
            yield Path(folder)
        finally:
            with contextlib.suppress(GpunodeError):
                _run("gpgconf", "--homedir", folder, "--kill", "gpg-agent")


def _gpg(home: Path, *words: str, data: bytes = b"") -> bytes:
    options = ("--homedir", str(home), "--batch", "--no-tty", "--quiet", "--pinentry-mode", "loopback")
    done = _run("gpg", *options, *words, data=data)
    if done.returncode:
        stated = done.stderr.decode(errors="replace").strip().splitlines()
        raise GpunodeError(f"gpg failed: {stated[-1] if stated else done.returncode}", fix=_FIX)
    return done.stdout


def _run(*command: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        environment = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(command, input=data, capture_output=True, check=False, env=environment)
    except FileNotFoundError as error:
        raise GpunodeError(f"{command[0]} is not there", fix=_FIX) from error
