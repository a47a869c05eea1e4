"""The part of gpunode.yml about how a fleet is gone through: waves and budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gpunode.core.errors import InputError
from gpunode.core.late import dataclass
from gpunode.core.spec.option import check_least, check_text, option


@dataclass(frozen=True, kw_only=True)
class DrainSpec:
    """Hosts that are nodes of Kubernetes, emptied as kubectl drain does before they are disturbed."""

    when: Literal["never", "disruptive", "always"] = option(
        "never", "which nodes are cordoned and drained first: none, those that a step disturbs, or all with steps"
    )
    delete_local_data: bool = option(False, "also evict pods with emptyDir volumes, whose data are lost")
    force: bool = option(False, "also evict pods that nothing starts again")
    timeout: int = option(600, "seconds that draining one node may take")
    ready_timeout: int = option(900, "seconds until the node is Ready and offers its GPUs again")


@dataclass(frozen=True, kw_only=True)
class RolloutSpec:
    """How many hosts of a pool are worked on, and when it stops.  Hosts with the same values and name are one pool."""

    pool: str = option("", "name of the pool that budgets are counted in; hosts with other values are another one")
    waves: tuple[str, ...] = option(
        ("100%",), "hosts that are done when a wave is over, counted from the first: [1, 10%, 100%]; a canary first"
    )
    max_unavailable: str = option(
        "100%",
        "hosts of the pool that may be down at any time: running, failed, or left so by an earlier run: 5, or 10%",
    )
    max_failures: str = option("0", "failed hosts up to which further hosts are started: 3, or 5%")
    soak: int = option(0, "seconds after a wave, before its hosts are verified once more and the next wave starts")
    drain: DrainSpec = option(DrainSpec(), "nodes of Kubernetes")
    accept: Literal["off", "quick"] = option(
        "off", "the level of `gpunode accept` at which a changed host is measured before it counts as done"
    )
    order: Literal["inventory", "name"] = option("inventory", "which hosts come first: as in the inventory, or by name")


def check_rollout(rollout: RolloutSpec) -> None:
    """Raises InputError for counts that are none, and for waves that do not grow to the whole."""
    counts = [("rollout.max_unavailable", rollout.max_unavailable), ("rollout.max_failures", rollout.max_failures)]
    for name, text in [*counts, *(("rollout.waves", wave) for wave in rollout.waves)]:
        fix = "a list: waves: [1, 10%, 100%], or --waves 1,10%,100%" if name == "rollout.waves" else ""
        expected = "a number of hosts such as 5, or 0% to 100%"
        check_text(name, text, r"\d+|(\d|[1-9]\d|100)%", expected, fix=fix, verb="has")
    if share(rollout.max_unavailable, 100) == 0:
        raise InputError.of("rollout.max_unavailable", "is 0", expected="at least 1: nothing could ever be done")
    for kind in ("%", ""):
        sizes = [int(w.rstrip("%")) for w in rollout.waves if w.endswith("%") == bool(kind)]
        if sizes != sorted(set(sizes)):
            raise InputError.of("rollout.waves", f"are {', '.join(rollout.waves)}", expected="each larger than before")
    if not rollout.waves or rollout.waves[-1] != "100%":
        waves = [*(wave for wave in rollout.waves if wave != "100%"), "100%"]
        fix = f"waves: [{', '.join(waves)}], or --waves {','.join(waves)}"
        are = f"are {', '.join(rollout.waves) or 'none'}"
        raise InputError.of("rollout.waves", are, expected="100% as the last wave", fix=fix)
    if min(rollout.drain.timeout, rollout.drain.ready_timeout) < 1:
        raise InputError.of("rollout.drain", "has a timeout below 1", expected="seconds")
    check_least("rollout.soak", rollout.soak, 0, "0 or more seconds")


def parse_rollout(data: Mapping[str, Any]) -> dict[str, Any]:
    """Some of the keys of `rollout`, as options give them → fields of RolloutSpec.  Raises InputError."""
    found: dict[str, Any] = {key: tuple(map(str, value)) if key == "waves" else value for key, value in data.items()}
    check_rollout(RolloutSpec(**found))
    return found


def share(text: str, count: int) -> int:
    """ "5" or "10%" of `count` hosts → hosts; of a share that is not 0 at least one."""
    if not text.endswith("%"):
        return min(int(text), count)
    percent = int(text[:-1])
    return max(1, count * percent // 100) if percent and count else 0
