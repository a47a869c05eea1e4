"""gpunode.lock: the exact versions that a class of hosts has, so that every other host of the class gets the same.

A class is a distribution, an architecture and a set of GPUs.  Locked are the driver (with the fabric manager, which has
its version), the kernel, CUDA and the container toolkit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.late import asdict, dataclass, replace
from gpunode.core.model import NodeFacts, Plan, Problem
from gpunode.core.spec import Spec

FORMAT = 1
HEAD = (
    "# Written by `gpunode lock`: the exact versions of each class of hosts.  Keep it in version control;\n"
    "# `--locked` refuses anything else, `gpunode lock --update` shows what has changed and rewrites it.\n"
)
_UNLOCKED = "provision without --locked, then gpunode lock --update"
REPAIR = "restore it from version control, or remove it first: gpunode lock -i INVENTORY then writes another"
_FIELDS = ("driver", "kernel", "cuda", "toolkit")


@dataclass(frozen=True, kw_only=True)
class Locked:
    """The versions of one class; "" for what its hosts do not have."""

    driver: str = ""
    kernel: str = ""
    cuda: tuple[str, ...] = ()
    toolkit: str = ""


class Lock(dict[str, Locked]):
    """Class → its versions; `where` names the file."""

    where = "gpunode.lock"


def class_of(facts: NodeFacts) -> str:
    """DISTRIBUTION/ARCHITECTURE/GPUs, such as "debian:12/x86_64/8x10de:2330"; "no-gpu" without any."""
    counts = Counter(gpu.id for gpu in facts.gpus)
    gpus = "+".join(f"{count}x{pci_id}" for pci_id, count in sorted(counts.items())) or "no-gpu"
    return f"{facts.distro.key}/{facts.arch}/{gpus}"


def locked_of(facts: NodeFacts) -> Locked:
    """What a host has now."""
    return Locked(
        driver=facts.driver.loaded or facts.driver.userspace,
        kernel=facts.kernel,
        cuda=tuple(sorted(facts.cuda)),
        toolkit=facts.toolkit,
    )


def make_lock(hosts: Sequence[tuple[str, NodeFacts]]) -> Lock:
    """Hosts with their facts → the lock.  Raises InputError where hosts of one class differ."""
    found: dict[str, tuple[str, Locked]] = {}
    for host, facts in hosts:
        key, mine = class_of(facts), locked_of(facts)
        first, other = found.setdefault(key, (host, mine))
        if other != mine:
            raise InputError(
                f"{first} and {host} are of the class {key} and differ: "
                + "; ".join(differences(other, mine, f"{first} {{}}, {host} {{}}")),
                expected="the same versions on all hosts of a class",
                fix="provision them first, or lock only those that are as they should be (--limit)",
            )
    return Lock({key: mine for key, (_, mine) in sorted(found.items())})


def differences(old: Locked, new: Locked, both: str = "{} → {}") -> list[str]:
    """ "driver: 580.1 → 580.2", for each thing that differs."""
    return [
        f"{name}: {both.format(_text(getattr(old, name)), _text(getattr(new, name)))}"
        for name in _FIELDS
        if getattr(old, name) != getattr(new, name)
    ]


def lock_differences(old: Lock, new: Lock) -> list[str]:
    """A line for each class and thing that differs between two locks."""
    lines = []
    for key in sorted({*old, *new}):
        if key not in old:
            lines.append(f"{key}: new: {', '.join(f'{name} {_text(getattr(new[key], name))}' for name in _FIELDS)}")
        elif key not in new:
            lines.append(f"{key}: not there any more")
        else:
            lines += [f"{key}: {text}" for text in differences(old[key], new[key])]
    return lines


def with_lock(spec: Spec, lock: Lock, facts: NodeFacts) -> tuple[Spec, tuple[Problem, ...]]:
    """The spec with the versions of the host's class in it, and what stands against that."""
    key = class_of(facts)
    locked = lock.get(key)
    if locked is None:
        known = ", ".join(lock) or "none"
        return spec, (Problem(what=f"{lock.where} has no class {key} (it has {known})", fix="gpunode lock --update"),)
    problems = []
    if locked.kernel and facts.kernel != locked.kernel:
        what = f"the running kernel is {facts.kernel}, {lock.where} has {locked.kernel} for {key}"
        problems.append(Problem(what=what, fix="boot that kernel, or gpunode lock --update"))
    for name, asked, have in (
        ("driver.version", spec.driver.version, locked.driver),
        ("driver.branch", spec.driver.branch, locked.driver.partition(".")[0]),
        ("toolkit.version", spec.toolkit.version, locked.toolkit),
    ):
        if asked[:1].isdigit() and asked != have:
            what = f"{name} is {asked}, {lock.where} has {have or 'none'} for {key}"
            problems.append(Problem(what=what, fix=_UNLOCKED))
    if problems:
        return spec, tuple(problems)
    driver = replace(spec.driver, version=locked.driver) if spec.driver.branch != "none" else spec.driver
    toolkit = replace(spec.toolkit, version=locked.toolkit or spec.toolkit.version)
    return replace(spec, driver=driver, toolkit=toolkit), ()


def name_lock(plan: Plan, lock: Lock, facts: NodeFacts, spec: Spec, free: Plan) -> Plan:
    """The plan, with the file named for whose versions it is refused.

    `spec` is the one without the lock's versions, `free` the plan of the same host by it: what it has of `plan`'s
    problems does not come from the lock.
    """
    locked, (_, named) = lock.get(class_of(facts)), with_lock(spec, lock, facts)
    if not locked or named or not set(plan.problems) - set(free.problems):
        return plan
    have = f"driver {locked.driver or 'none'} and toolkit {locked.toolkit or 'none'}"
    stale = Problem(what=f"{lock.where} has {have} for {class_of(facts)}", fix=_UNLOCKED)
    return replace(plan, problems=(*plan.problems, stale))


def lock_text(lock: Lock) -> str:
    """As TOML."""
    lines = [HEAD, f"format = {FORMAT}\n"]
    for key, locked in sorted(lock.items()):
        lines.append(f'\n[class."{key}"]\n')
        for name, value in asdict(locked).items():
            text = f"[{', '.join(map(_quoted, value))}]" if isinstance(value, tuple) else _quoted(value)
            lines.append(f"{name} = {text}\n")
    return "".join(lines)


def parse_lock(data: Mapping[str, Any], where: str) -> Lock:
    """Parsed TOML → lock.  Raises InputError."""
    if data.get("format") != FORMAT:
        what = f"format is {data.get('format')!r}" if data else "it is empty"
        raise InputError(f"{where}: {what}", expected=f"format = {FORMAT}", fix=REPAIR)
    lock = Lock()
    lock.where = where
    for key, row in (data.get("class") or {}).items():
        unknown = set(row) - set(_FIELDS) if isinstance(row, dict) else {str(row)}
        if unknown:
            raise InputError(
                f"{where}: class {key} has {', '.join(sorted(unknown))}", expected=", ".join(_FIELDS), fix=REPAIR
            )
        lock[key] = Locked(**{**row, "cuda": tuple(row.get("cuda", ()))})
    return lock


def _quoted(text: str) -> str:
    return f'"{text}"'


def _text(value: str | tuple[str, ...]) -> str:
    return (", ".join(value) if isinstance(value, tuple) else value) or "none"
