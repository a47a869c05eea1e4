"""Settings that are changed and put back (--change): only by root, never where the owner forbids it.

Whatever puts a setting back is a program of its own that waits for the end of a pipe: it does so when the change was
looked at, when gpunode fails, and when gpunode is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpunode.core.engines import DAEMONS, ROWS
from gpunode.core.model import NodeFacts, NvmlGpu
from gpunode.core.selftest.readings import read_profiles
from gpunode.edge.programs import python_module
from gpunode.edge.selftest.capture import Clock, capture, find

KEEP = Path("/etc/gpunode/keep-settings")  # its owner says: GPU settings of this machine stay as they are
VARIABLE = "GPUNODE_KEEP_SETTINGS"
ROOT = Path("/")
STATE = Path("/var/lib/gpunode")
SCHEDULERS = ("kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent", "k0scontroller", "k0sworker", "slurmd")
SECONDS = 30.0
STEPS = ("runtime", "persistence", "power", "mig", "reset")


def locked(facts: NodeFacts, *, root: bool) -> str:
    """Why no setting of this machine is touched, "" where it may be."""
    if not root:
        return "needs root"
    if KEEP.exists() or os.environ.get(VARIABLE):
        who = str(KEEP) if KEEP.exists() else f"the variable {VARIABLE}"
        return f"{who} says that the settings of this machine stay as they are"
    if facts.container:
        return "in a container: the settings belong to its host"
    running = [name for name in SCHEDULERS if name in facts.services and facts.services[name].active == "active"]
    running += [name for name in SCHEDULERS if name not in running and _unit_active(name)]
    if running:
        return f"{running[0]} runs and gives the GPUs to others: drain the node and stop it first"
    if _held():
        return "another gpunode is at work on this machine"
    return ""


def _unit_active(name: str) -> bool:
    return capture(["systemctl", "is-active", "--quiet", name], Clock(5), 5).exit == 0


def _held() -> bool:
    """Whether the lock of the node scripts is taken."""
    try:
        with (STATE / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def run_changes(facts: NodeFacts, busy: Sequence[str], clock: Clock, *, why: str) -> dict[str, Any]:
    """{"steps": [{step, where, wanted, before, during, after, output} or {step, where, why}]}."""
    if why:
        return {"steps": [{"step": step, "where": "", "why": why} for step in STEPS]}
    steps = [*_runtime(facts, clock)]
    for gpu in _one_of_each(facts):
        if gpu.uuid in busy:
            reason = f"a program uses GPU {gpu.index}"
            steps += [{"step": step, "where": gpu.slot, "why": reason} for step in STEPS[1:]]
            continue
        steps += [_persistence(gpu, clock), _power(gpu, clock), _mig(gpu, clock), _reset(gpu, facts, clock)]
    if len(steps) == len([s for s in steps if s["step"] == "runtime"]):
        steps += [{"step": step, "where": "", "why": "nvidia-smi lists no GPU"} for step in STEPS[1:]]
    return {"steps": steps}


def _one_of_each(facts: NodeFacts) -> list[NvmlGpu]:
    found: dict[str, NvmlGpu] = {}
    for gpu in facts.nvml:
        found.setdefault(gpu.name, gpu)
    return [*found.values()]


@contextlib.contextmanager
def put_back(*commands: Sequence[str]) -> Iterator[None]:
    """Within it a setting may be other; at its end, however it ends, a program of its own runs the commands."""
    script = "; ".join(shlex.join([find(command[0]) or command[0], *command[1:]]) for command in commands)
    guard = subprocess.Popen(
        ["/bin/sh", "-c", f"trap '' INT TERM HUP; cat >/dev/null; {script}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        assert guard.stdin
        guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.wait(2 * SECONDS)


def _ask(gpu: NvmlGpu, field: str, clock: Clock) -> str:
    words = ["nvidia-smi", "-i", gpu.uuid, f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return capture(words, clock, SECONDS).text.strip()


def _changed(
    step: str, gpu: NvmlGpu, field: str, wanted: str, change: Sequence[str], back: Sequence[str], clock: Clock
) -> dict[str, Any]:
    """One setting: what it was, what it was during the change, and what it is after it was put back."""
    before = _ask(gpu, field, clock)
    with put_back(back):
        done = capture(change, clock, SECONDS)
        during = _ask(gpu, field, clock)
    after = _ask(gpu, field, Clock(SECONDS))
    refused = re.search(r"insufficient permissions|not supported|not permitted", done.text, re.IGNORECASE)
    if done.exit != 0 and refused and during == before:
        return {"step": step, "where": gpu.slot, "why": f"nvidia-smi: {refused[0].lower()}"}
    row = {"step": step, "where": gpu.slot, "wanted": wanted, "before": before, "during": during, "after": after}
    return {**row, "output": done.error}


def _persistence(gpu: NvmlGpu, clock: Clock) -> dict[str, Any]:
    if gpu.persistence not in ("Enabled", "Disabled"):
        return {"step": "persistence", "where": gpu.slot, "why": "the GPU has no persistence mode"}
    now, other = ("1", "0") if gpu.persistence == "Enabled" else ("0", "1")
    wanted = "Disabled" if gpu.persistence == "Enabled" else "Enabled"
    words = ["nvidia-smi", "-i", gpu.uuid, "-pm"]
    return _changed("persistence", gpu, "persistence_mode", wanted, [*words, other], [*words, now], clock)


def _power(gpu: NvmlGpu, clock: Clock) -> dict[str, Any]:
    limits = [_number(_ask(gpu, f"power.{name}", clock)) for name in ("limit", "min_limit", "max_limit")]
    if None in limits:
        return {"step": "power", "where": gpu.slot, "why": "the GPU has no power limit that can be set"}
    now, least, most = (float(limit or 0) for limit in limits)
    wanted = max(least, float(int(now * 0.9)))
    wanted = wanted if wanted != now else min(most, now + 1)
    if wanted == now:
        return {"step": "power", "where": gpu.slot, "why": "its power limit has one value only"}
    words = ["nvidia-smi", "-i", gpu.uuid, "-pl"]
    back = [*words, f"{now:.2f}"]
    return _changed("power", gpu, "power.limit", f"{wanted:.2f}", [*words, f"{wanted:.2f}"], back, clock)


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def _mig(gpu: NvmlGpu, clock: Clock) -> dict[str, Any]:
    """An instance of the smallest profile, on a GPU in MIG mode that has none: the mode itself is never changed."""
    row = {"step": "mig", "where": gpu.slot}
    if gpu.mig_current != "Enabled":
        return {**row, "why": "MIG is off, and its mode is not changed: on many GPUs that is a reset"}
    smi = ["nvidia-smi", "mig", "-i", gpu.uuid]
    before = _instances(smi, clock)
    if before != "0":
        return {**row, "why": f"{before} MIG instances are there, and they stay"}
    profiles = [p for p in read_profiles(capture([*smi, "-lgip"], clock, SECONDS).text) if "+" not in p.name]
    if not profiles:
        return {**row, "why": "nvidia-smi mig -lgip lists no profile"}
    smallest = min(profiles, key=lambda profile: profile.gib)
    with put_back([*smi, "-dci"], [*smi, "-dgi"]):
        done = capture([*smi, "-cgi", str(smallest.id), "-C"], clock, SECONDS)
        during = _instances(smi, clock)
    after = _instances(smi, Clock(SECONDS))
    return {**row, "wanted": "1", "before": before, "during": during, "after": after, "output": done.error}


def _instances(smi: Sequence[str], clock: Clock) -> str:
    text = capture([*smi, "-lgi"], clock, SECONDS).text
    return str(len(re.findall(r"^\|\s*\d+\s+MIG ", text, re.MULTILINE)))


def _reset(gpu: NvmlGpu, facts: NodeFacts, clock: Clock) -> dict[str, Any]:
    """nvidia-smi refuses a reset while this process has the GPU open."""
    row = {"step": "reset", "where": gpu.slot}
    minor = next((one.minor for one in facts.cdi.gpus if one.uuid == gpu.uuid), gpu.index)
    words = ["nvidia-smi", "-L"]
    before = capture(words, clock, SECONDS).text
    try:
        device = os.open(f"/dev/nvidia{minor}", os.O_RDWR)
    except OSError as error:
        return {**row, "why": f"/dev/nvidia{minor} cannot be opened: {error.strerror}"}
    try:
        done = capture(["nvidia-smi", "--gpu-reset", "-i", gpu.uuid], clock, SECONDS)
    finally:
        os.close(device)
    after = capture(words, Clock(SECONDS), SECONDS).text
    during = "refused" if done.exit else "reset"
    hashes = [hashlib.sha256(text.encode()).hexdigest()[:12] for text in (before, after)]
    return {**row, "wanted": "refused", "before": hashes[0], "during": during, "after": hashes[1], "output": done.error}


# ---------------------------------------------------------------- engines, on a copy


_ROOTS = {name: posixpath.dirname(ROWS[name].config).lstrip("/") for name in DAEMONS}
_VALIDATE = {
    "containerd": ["containerd", "--config", "{tree}/etc/containerd/config.toml", "config", "dump"],
    "docker": ["dockerd", "--validate", "--config-file", "{tree}/etc/docker/daemon.json"],
}


def _runtime(facts: NodeFacts, clock: Clock) -> Iterator[dict[str, Any]]:
    """Each engine's configuration on a copy of /etc: configured, read by the engine's own program, given back."""
    engines = [one for one in facts.runtimes if one.name in _ROOTS and not one.distribution and one.version]
    if not engines:
        yield {"step": "runtime", "where": "", "why": "containerd, Docker or CRI-O are not on this machine"}
    for engine in engines:
        with tempfile.TemporaryDirectory(prefix="gpunode-selftest-") as name:
            tree = Path(name)
            folder = _ROOTS[engine.name]
            if (ROOT / folder).is_dir():
                shutil.copytree(ROOT / folder, tree / folder, symlinks=True)
            else:
                (tree / folder).mkdir(parents=True)
            first = _edit("unconfigure", engine.name, engine.version, tree, clock)  # the runtime may be there already
            before = _digest(tree)
            stated = [first or _edit("configure", engine.name, engine.version, tree, clock)]
            during = "configured" if not stated[0] and _digest(tree) != before else f"unchanged {stated[0]}".strip()
            if engine.name in _VALIDATE and not stated[0]:
                words = [word.format(tree=tree) for word in _VALIDATE[engine.name]]
                checked = capture(words, clock, SECONDS)
                during = during if checked.exit == 0 or not find(words[0]) else f"refused by {words[0]}"
                stated.append(checked.error)
            stated.append(_edit("unconfigure", engine.name, engine.version, tree, Clock(SECONDS)))
            yield {
                "step": "runtime",
                "where": engine.name,
                "wanted": "configured",
                "before": before,
                "during": during,
                "after": _digest(tree),
                "output": "; ".join(filter(None, stated)),
            }


def _edit(verb: str, engine: str, version: str, tree: Path, clock: Clock) -> str:
    command, variables = python_module("gpunode")
    words = [*command, "runtime", verb, "--runtime", engine, "--root", str(tree)]
    more = ["--engine-version", version] if version else []
    environment: Mapping[str, str] = {"XDG_STATE_HOME": str(tree / "state"), **variables}
    return capture([*words, *more], clock, SECONDS, env=environment).error


def _digest(tree: Path) -> str:
    """Names and bytes of all files in etc."""
    total = hashlib.sha256()
    for path in sorted((tree / "etc").rglob("*")):
        if path.is_file():
            total.update(str(path.relative_to(tree)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]
