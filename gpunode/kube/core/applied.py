"""What apply and remove did, as values, text and plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from gpunode.core.errors import Exit, GpunodeError
from gpunode.core.late import dataclass
from gpunode.core.model import Problem
from gpunode.kube.core.owned import ObjectKey

How = Literal["created", "changed", "unchanged", "kept", "deleted"]


@dataclass(frozen=True, kw_only=True)
class ObjectChange:
    """What became of an object; `kept`: somebody else's, that is as we need it, or holds what is not ours."""

    key: ObjectKey
    how: How
    diff: str = ""  # of a dry run
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """`problems`: nothing was done.  `error`: it broke off, `left` was not done.  `waiting`: not ready in time."""

    changes: tuple[ObjectChange, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    left: tuple[ObjectKey, ...] = ()
    error: GpunodeError | None = None
    dry_run: bool = False

    @property
    def exit(self) -> Exit:
        if self.problems:
            return Exit.REFUSED
        if self.error:
            return self.error.exit
        if self.waiting:
            return Exit.FAILED
        pending = self.dry_run and any(change.how not in ("unchanged", "kept") for change in self.changes)
        return Exit.PENDING if pending else Exit.OK


def applied_data(applied: Applied, server: str, context: str) -> dict[str, Any]:
    """The shape of `gpunode kube apply --format json` (docs/kubernetes.md)."""
    error = applied.error
    return {
        "server": server,
        "context": context,
        "dry_run": applied.dry_run,
        "changes": [
            {**_key_data(c.key), "change": c.how}
            | ({"diff": c.diff} if c.diff else {})
            | ({"why": c.why} if c.why else {})
            for c in applied.changes
        ],
        "not_ready": list(applied.waiting),
        "not_done": [_key_data(key) for key in applied.left],
        "notes": list(applied.notes),
        "problems": [{"what": problem.what, "fix": problem.fix} for problem in applied.problems],
        "error": {"what": error.what, "expected": error.expected, "fix": error.fix} if error else None,
    }


def applied_lines(applied: Applied) -> Iterator[str]:
    """A line for each thing that changed, and one that counts; a dry run with its diffs."""
    for change in applied.changes:
        if change.how != "unchanged":
            why = f" ({change.why})" if change.why else ""
            yield f"{change.key}: {'would be ' if applied.dry_run else ''}{change.how}{why}"
            yield from change.diff.splitlines()
    counts = Counter(change.how for change in applied.changes)
    total = ", ".join(f"{count} {how}" for how, count in counts.items())
    if not applied.problems and not applied.error:
        nothing = all(change.how in ("unchanged", "kept") for change in applied.changes)
        yield f"nothing to do ({total})" if nothing and total else total or "nothing is there that gpunode applied"


def _key_data(key: ObjectKey) -> dict[str, str]:
    return {"apiVersion": key.api, "kind": key.kind, "namespace": key.namespace, "name": key.name}
