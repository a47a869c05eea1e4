"""What of a spec's section `sharing` cannot work, whatever the GPUs are."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpunode.core.model import Problem
from gpunode.core.spec.kubernetes import SHARED, SharingSpec


def mig_profiles(sharing: SharingSpec) -> tuple[str, ...]:
    """All profiles that the spec wants instances of, each once."""
    layouts = (sharing.mig.profiles, *sharing.mig.gpus.values())
    return tuple(dict.fromkeys(profile for layout in layouts for profile, count in layout.items() if count))


def cuts(sharing: SharingSpec) -> bool:
    """Whether GPUs are cut into MIG instances."""
    return sharing.strategy == "mig" or (not sharing.mode.no_mig and bool(mig_profiles(sharing)))


def sharing_problems(sharing: SharingSpec, where: str) -> Iterator[Problem]:
    """Ways of sharing that exclude each other, and numbers that make no sense.  `where` is said before each key."""
    yield from _replica_problems(sharing, where)
    profiles = mig_profiles(sharing)
    if profiles and (why := sharing.mode.no_mig):
        yield Problem(
            what=f"{where} has MIG profiles with strategy {sharing.strategy}: {why}",
            fix="choose strategy: mig, or time-slicing to share the instances; else remove sharing.mig",
        )
    if sharing.mig.strategy == "single" and len(profiles) > 1 and not sharing.mode.no_mig:
        yield Problem(
            what=f"{where}.mig has {len(profiles)} profiles ({', '.join(profiles)}) with mig.strategy single",
            fix="set sharing.mig.strategy: mixed; with single all instances of a node must be alike",
        )
    if sharing.dra.shares != "none" and sharing.strategy != "dra":
        yield Problem(
            what=f"{where}.dra.shares is {sharing.dra.shares}, and strategy {sharing.strategy} has no claims",
            fix="choose strategy: dra, or remove sharing.dra",
        )
    for profile in profiles:
        if not re.fullmatch(r"(\dc\.)?\dg\.\d+gb([+-][a-z.]+)?", profile):
            yield Problem(what=f"{where}.mig names the profile {profile!r}", fix="write it as 1g.10gb or 1g.10gb+me")
    for index in sharing.mig.gpus:
        if not re.fullmatch(r"\d{1,3}", index):
            fix = "write its number in nvidia-smi's order: '0', '1' …"
            yield Problem(what=f"{where}.mig.gpus names the GPU {index!r}", fix=fix)


def _replica_problems(sharing: SharingSpec, where: str) -> Iterator[Problem]:
    replicas, mode = sharing.replicas, sharing.mode
    what, others = f"{where}.replicas is {replicas}", f"remove it, or choose strategy: {' or '.join(SHARED)}"
    if mode.most:
        if replicas < 2:
            fix = "set it to 2 or more; strategy: none is for whole GPUs"
            yield Problem(what=f"{what} with {sharing.strategy}", fix=fix)
        if replicas > mode.most:
            yield Problem(what=f"{what}; {mode.limit}", fix=f"set it to {mode.most} or less")
        return
    if replicas:
        yield Problem(what=f"{what}, and strategy {sharing.strategy} has no replicas", fix=others)
    if sharing.rename_by_default:
        what = f"{where}.rename_by_default is true, and strategy {sharing.strategy} renames nothing"
        yield Problem(what=what, fix=others)
