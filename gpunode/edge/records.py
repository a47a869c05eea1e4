"""Records of acceptances on this machine: where they lie, their signatures, what has changed since."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gpunode.core.accept.result import record_from, since_checks
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.model import Check, NodeFacts
from gpunode.edge.state import state_dir

RECORDS = "records"
NAMESPACE = "gpunode-accept"  # of signatures by ssh-keygen


def known_folder(name: str) -> Path:
    """Raises InputError."""
    root = state_dir() / "accept"
    found = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    mine = found[-1:] if name == "last" else [path for path in found if path.name.startswith(name)]
    if len(mine) != 1:
        raise InputError(
            f"{name}: {len(mine)} acceptances have this name", expected="the name of one, its beginning, or last",
            fix=f"ls {root}",
        )  # fmt: skip
    return mine[0]


def sign_file(path: Path, key: Path) -> None:
    """PATH.sig beside it, by ssh-keygen with a private key or one that ssh-agent has.  Raises GpunodeError."""
    path.with_name(f"{path.name}.sig").unlink(missing_ok=True)
    _ssh_keygen("-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(path))


def check_signed(path: Path) -> str:
    """Who signed, by ssh-keygen's own words; "" where nobody did.  Raises GpunodeError for a wrong signature."""
    signature = path.with_name(f"{path.name}.sig")
    if not signature.is_file():
        return ""
    said = _ssh_keygen("-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(signature), given=path.read_bytes())
    return said.strip().partition("\n")[0]


def _ssh_keygen(*arguments: str, given: bytes = b"") -> str:
    try:
        ran = subprocess.run(
            ["ssh-keygen", *arguments], input=given, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise GpunodeError("ssh-keygen is not installed", fix="apt-get install openssh-client") from error
    if ran.returncode:
        text = (ran.stderr or ran.stdout).decode(errors="replace").strip()
        raise GpunodeError(
            f"ssh-keygen {arguments[1]} fails: {text}", fix="is it the right key, and the file as it was?"
        )
    return ran.stdout.decode(errors="replace")


def accepted_checks(hosts: Mapping[str, NodeFacts], name: str) -> dict[str, list[Check]]:
    """For `verify --since-acceptance`: what is other than at the acceptance `name` (or last).  Raises InputError."""
    folder = Path(name) if "/" in name else known_folder(name) / RECORDS
    found = {}
    for host, facts in hosts.items():
        path = folder / f"{host.replace('/', '_')}.json"
        if not path.is_file():
            text = f"{host} was not accepted: {folder} has no record of it"
            found[host] = [Check(id="accept.verdict", status="not-proven", message=text, fix="gpunode accept")]
            continue
        try:
            signer = check_signed(path)
            checks = since_checks(record_from(json.loads(path.read_text(encoding="utf-8"))), facts)
        except (GpunodeError, OSError, ValueError, RecursionError) as error:
            what = error.what if isinstance(error, GpunodeError) else str(error)
            found[host] = [Check(id="accept.verdict", status="failed", message=f"{path}: {what}", fix="gpunode accept")]
            continue
        if signer:
            checks.append(Check(id="accept.signed", status="passed", message=signer))
        found[host] = checks
    return found
