"""A program of Kubernetes' that a host runs, as whoever edits its files sees it: kube-scheduler, kubelet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpunode.core.edits.engine import Activation
from gpunode.core.model import Edit, Undo

Files = Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Component:
    """What is asked of it, as functions of its files (absolute path → bytes; a path not in there does not exist).

    `root` is the file that names the others: it is written last.  `label` says whose an undo record is.  `files` gives
    paths and globs, to be asked again with what was read until it names nothing new.  `settle` is how many seconds the
    program has to stay up afterwards.
    """

    name: str
    root: str
    label: str
    files: Callable[[Files], tuple[str, ...]]
    configure: Callable[[Files], Edit]
    unconfigure: Callable[[Files, Sequence[Mapping[str, Undo]]], Edit]
    activation: Callable[[Files, Edit], Activation]
    settle: int = 10


def asks(scheme: str, address: str, port: str) -> tuple[tuple[str, ...], ...]:
    """Health commands that ask where a program answers, with the tools that a node may have; () where port is 0.

    Its certificate is its own.  What listens everywhere is asked at 127.0.0.1.
    """
    if port == "0":
        return ()
    address = "127.0.0.1" if address in ("0.0.0.0", "::") else address  # noqa: S104
    url = f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}/healthz"
    return (
        ("curl", "-fsSk", "--noproxy", "*", "--max-time", "5", url),
        ("wget", "-q", "--no-proxy", "--no-check-certificate", "-T", "5", "-O", "-", url),
    )


def units_changed(edit: Edit) -> bool:
    """Whether systemd has to read its units again."""
    return any(path.endswith((".service", ".conf")) and "/systemd/system/" in path for path in edit.changes)
