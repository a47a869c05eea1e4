"""Repositories and CUDA in the wanted state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpunode.core.items.sources import (
    keyrings_rid_of,
    render,
    revoked_files,
    rival_files,
    source_files,
    sources_path,
)
from gpunode.core.items.values import ABSENT, Key, Want, file_value, file_want, no_file, package_want
from gpunode.core.knowledge import version_tuple
from gpunode.core.model import CudaChoice, FabricChoice, NodeFacts, Reason, Solution
from gpunode.core.solve.fabric import IMEX_NODES, METRICS, METRICS_TIMER
from gpunode.core.spec.source import DISTRIBUTION

CUDA_PROFILE = "/etc/profile.d/cuda.sh"


def wanted_sources(facts: NodeFacts, solution: Solution, templates: Mapping[str, str]) -> Iterator[tuple[Key, Want]]:
    """Each repository's files once, by the first role that needs it; files that rival it or hold a revoked key go."""
    seen: set[str] = set()
    for role in ("driver", "fabric", "cuda", "toolkit"):
        part = getattr(solution, role)
        for repository in solution.repositories:
            if part is None or repository.name not in (part.repository, DISTRIBUTION) or repository.name in seen:
                continue
            seen.add(repository.name)
            for file in source_files(repository, facts, templates):
                yield Key(role, "sources", file.path), Want(value=file_value(file), data=file)
            for path in rival_files(repository, facts):
                yield Key(role, "sources", path), no_file(path)
    if DISTRIBUTION not in seen and sources_path(DISTRIBUTION, facts) in facts.files:  # the spec names it no longer
        yield Key("driver", "sources", sources_path(DISTRIBUTION, facts)), no_file(sources_path(DISTRIBUTION, facts))
    yield from _revoked(facts, solution.revoked_keys if seen else ())


def wanted_fabric(fabric: FabricChoice, templates: Mapping[str, str]) -> Iterator[tuple[Key, Want]]:
    """DCGM, the addresses of the IMEX domain, what writes metrics, and the services of all."""
    for package in fabric.packages:
        yield Key("fabric", "packages", package.name), package_want(package)
    for name in fabric.remove:
        yield Key("fabric", "packages", name), Want(value=ABSENT)
    if fabric.imex_nodes:
        text = "".join(f"{node}\n" for node in fabric.imex_nodes)
        yield Key("fabric", "files", IMEX_NODES), file_want(IMEX_NODES, text)
    if fabric.metrics:
        texts = {
            METRICS: templates["metrics.sh"],
            f"/etc/systemd/system/{METRICS_TIMER}": templates["metrics.timer.j2"],
            f"/etc/systemd/system/{METRICS_TIMER.replace('.timer', '.service')}": render(
                templates["metrics.service.j2"], folder=fabric.metrics
            ),
        }
        yield from ((Key("fabric", "files", path), file_want(path, text)) for path, text in texts.items())
    for unit in fabric.services:
        yield Key("fabric", "activate", f"service {unit}"), Want(value="active, enabled")


def _revoked(facts: NodeFacts, revoked: Sequence[str]) -> Iterator[tuple[Key, Want]]:
    for path in revoked_files(facts, revoked):
        why = Reason(what=path, why="holds a repository key that its vendor has revoked")
        yield Key("driver", "sources", path), no_file(path, why)
    for path, rest in keyrings_rid_of(facts, revoked):
        why = Reason(what=path, why=f"holds a revoked repository key among others, which {rest.path} keeps")
        yield Key("driver", "sources", rest.path), Want(value=file_value(rest), data=rest)
        yield Key("driver", "sources", path), no_file(path, why)


def wanted_cuda(cuda: CudaChoice, templates: Mapping[str, str]) -> Iterator[tuple[Key, Want]]:
    """The toolkits' packages or installers, the one that /usr/local/cuda leads to, and the PATH.

    A distribution's own toolkit (`versions` is empty) brings its PATH itself, and is not in /usr/local.
    """
    for package in cuda.packages:
        yield Key("cuda", "packages", package.name), package_want(package)
    for runfile in cuda.runfiles:
        yield Key("cuda", "runfile", runfile.version), Want(value=runfile.version, data=runfile)
    if not cuda.versions:
        return
    newest = max(cuda.compat, key=version_tuple, default="")  # its libcuda serves the older toolkits as well
    text = render(templates["cuda.sh.j2"], compat=newest)
    yield Key("cuda", "files", CUDA_PROFILE), file_want(CUDA_PROFILE, text)
    yield Key("cuda", "activate", "default"), Want(value=cuda.version)
