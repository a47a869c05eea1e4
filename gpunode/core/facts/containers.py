"""Section `containers`: what runs in each engine."""

from __future__ import annotations

from gpunode.core.facts.text import Probe
from gpunode.core.model import Running


def read_containers(probe: Probe) -> dict[str, Running]:
    """Engine → what runs in it; the engines of Kubernetes distributions by the distribution's name (k3s is RKE2's too).

    Whether dockerd knows NVIDIA's hook follows from times in whole seconds: it looks for it when it starts.
    """
    said: dict[str, dict[str, list[str]]] = {}
    for engine, rest in probe.pairs("containers"):
        key, _, value = rest.partition(" ")
        said.setdefault(engine, {}).setdefault(key, []).append(value)
    found = {}
    for engine, values in said.items():
        if set(values) == {"rootless"}:
            continue
        started, hook = _number(values, "started"), _number(values, "hook")
        live = values.get("live_restore", [""])[-1]
        found[engine] = Running(
            count=_number(values, "count", "tasks"),
            names=tuple(values.get("name", ())),
            live_restore={"true": True, "false": False}.get(live),
            knows_hook=started is not None and hook is not None and hook + 1 < started,
            reloads=engine == "docker" and _reloads(probe, ("docker.service", "snap.docker.dockerd.service")),
        )
    probe.notes += [
        f"containers: user {user} runs a rootless Docker of their own, which gpunode does not see"
        for user in said.get("docker", {}).get("rootless", ())
    ]
    return found


def _number(values: dict[str, list[str]], *keys: str) -> int | None:
    """The largest number said, None when there is none."""
    texts = [text for key in keys for text in values.get(key, ())]
    return max((int(text) for text in texts if text.isdecimal() and len(text) < 16), default=None)


def _reloads(probe: Probe, units: tuple[str, ...]) -> bool:
    """Whether the first of these units that runs can be reloaded."""
    block: dict[str, str] = {}
    for line in (*probe.sections.get("units", ()), ""):
        key, _, value = line.partition("=")
        block[key] = value
        if line.strip():
            continue
        if block.get("Id") in units and block.get("MainPID", "0") != "0":
            return block.get("CanReload") == "yes"
        block = {}
    return False
