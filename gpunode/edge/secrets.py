"""Secrets of gpunode.yml on their way to the action plugins of one run: through memory, not through a file or argv."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpunode.core.errors import InputError
from gpunode.core.secrets import Secrets

VARIABLE = "gpunode_secrets"  # of Ansible: the path where the plugins read them


@contextlib.contextmanager
def handed_over(secrets: Secrets) -> Iterator[list[str]]:
    """The arguments by which the plugins of an ansible-playbook that runs meanwhile find the secrets.

    They name a file in memory that belongs to this process and ends with it, however it ends.  Where the system has
    none (not Linux), a 0600 file in a temporary folder that is removed.
    """
    if not secrets:
        yield []
        return
    text = json.dumps(dict(secrets.values)).encode()
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("gpunode-secrets")
        try:
            os.write(descriptor, text)
            yield ["-e", f"{VARIABLE}=/proc/{os.getpid()}/fd/{descriptor}"]
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory(prefix="gpunode-") as folder:  # 0700
        path = Path(folder) / "secrets.json"
        path.touch(mode=0o600)
        path.write_bytes(text)
        yield ["-e", f"{VARIABLE}={path}"]


def received(path: str) -> Secrets:
    """What `handed_over` gave, in a plugin; none for "".  Raises InputError."""
    if not path:
        return Secrets()
    try:
        return Secrets(values=json.loads(Path(path).read_bytes()))
    except (OSError, ValueError) as error:
        raise InputError(
            f"the secrets of gpunode.yml cannot be read from {path}: {type(error).__name__}",
            fix=f"leave {VARIABLE} alone: gpunode provision sets it for its own run",
        ) from error
