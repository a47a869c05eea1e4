"""Package repositories as files on the node: one sources file and one key that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpunode.core.errors import InputError
from gpunode.core.grouped import grouped
from gpunode.core.items.file import File, KeyFile, render
from gpunode.core.items.item import Found, Item, Question
from gpunode.core.late import dataclass
from gpunode.core.model import NodeFacts, Reason, Repository
from gpunode.core.model.node import DEB_ARCHS
from gpunode.core.openpgp import fingerprints, without
from gpunode.core.secrets import is_recorded
from gpunode.core.spec.source import DISTRIBUTION

# Where each repository has been set up by others; a file beside ours gives every package twice, and makes apt fail:
# «Conflicting values set for option Signed-By» (NVIDIA/cuda-repo-management issue 4, NVIDIA/nvidia-docker issue 1631).
CONFLICTS: Mapping[str, tuple[str, ...]] = {
    "nvidia-cuda": ("developer.download.nvidia.com/compute/cuda/repos",),
    "nvidia-container-toolkit": (
        "nvidia.github.io/libnvidia-container",
        "nvidia.github.io/nvidia-docker",
        "nvidia.github.io/nvidia-container-runtime",
    ),
}
_KEY_FOLDERS = (
    "/etc/apt/trusted.gpg",  # the file, and the folder trusted.gpg.d
    "/etc/apt/keyrings/",
    "/usr/share/keyrings/",
    "/etc/pki/rpm-gpg/",
)


@dataclass(frozen=True, kw_only=True)
class SourcesLayout:
    """Where a package manager has its sources and keys; {name} is the repository's."""

    folder: str
    sources: str
    key: str
    template: str


# apt reads armored keys by the ending .asc (man sources.list(5), DEB822-STYLE FORMAT; man yum.conf(5); man zypper(8))
_DNF = SourcesLayout(
    folder="/etc/yum.repos.d",
    sources="gpunode-{name}.repo",
    key="/etc/pki/rpm-gpg/RPM-GPG-KEY-gpunode-{name}",
    template="rpm.repo.j2",
)
LAYOUTS = {
    "apt": SourcesLayout(
        folder="/etc/apt/sources.list.d",
        sources="gpunode-{name}.sources",
        key="/usr/share/keyrings/gpunode-{name}.asc",
        template="apt.sources.j2",
    ),
    "dnf": _DNF,
    "zypper": replace(_DNF, folder="/etc/zypp/repos.d"),
}


def layout(facts: NodeFacts) -> SourcesLayout:
    """The layout of the node's package manager; apt's where the probe did not say."""
    return LAYOUTS.get(facts.package_manager, LAYOUTS["apt"])


def key_path(repository: Repository, facts: NodeFacts) -> str:
    """Where the repository's armored key lies."""
    return layout(facts).key.format(name=repository.name)


def sources_path(name: str, facts: NodeFacts) -> str:
    """Where the repository of that name is set up."""
    where = layout(facts)
    return f"{where.folder}/{where.sources.format(name=name)}"


def wanted(question: Question) -> Found:
    """Each repository's files once, by the first role that needs it; files that rival it or hold a revoked key go."""
    facts, solution = question.facts, question.solution
    seen: set[str] = set()
    for role in ("driver", "fabric", "cuda", "toolkit"):
        part = getattr(solution, role)
        for repository in solution.repositories:
            if part is None or repository.name not in (part.repository, DISTRIBUTION) or repository.name in seen:
                continue
            seen.add(repository.name)
            yield from _files(role, repository, facts, question.templates)
            kept = solution.driver.repository_files if solution.driver else ()
            for path in rival_files(repository, facts):
                if path in kept:  # a package that is wanted brings it
                    continue
                yield File(role=role, option="sources", path=path, text=None)
    own = sources_path(DISTRIBUTION, facts)
    if DISTRIBUTION not in seen and own in facts.files:  # the spec names it no longer
        yield File(role="driver", option="sources", path=own, text=None)
    ours = {key_path(one, facts) for one in solution.repositories if one.name in seen}  # written with the new key
    yield from (one for one in _revoked(facts, solution.revoked_keys if seen else ()) if one.name not in ours)


def _revoked(facts: NodeFacts, revoked: Sequence[str]) -> Iterator[Item]:
    for path in revoked_files(facts, revoked):
        why = Reason(what=path, why="holds a repository key that its vendor has revoked")
        yield File(role="driver", option="sources", path=path, text=None, reasons=(why,))
    for path, rest in keyrings_rid_of(facts, revoked):
        why = Reason(what=path, why=f"holds a revoked repository key among others, which {rest.path} keeps")
        yield rest
        yield File(role="driver", option="sources", path=path, text=None, reasons=(why,))


def _files(role: str, repository: Repository, facts: NodeFacts, templates: Mapping[str, str]) -> tuple[File, ...]:
    """The key and the sources file of a repository."""
    text = render(
        templates[layout(facts).template],
        repository=repository,
        architecture=DEB_ARCHS.get(facts.arch, facts.arch),
        key=key_path(repository, facts),
        manager=facts.package_manager,
    )
    key = KeyFile(role=role, option="sources", path=key_path(repository, facts), repository=repository)
    # apt of who may not read it goes on without it
    mode = "0600" if is_recorded(text) else "0644"
    return (key, File(role=role, option="sources", path=sources_path(repository.name, facts), text=text, mode=mode))


def revoked_files(facts: NodeFacts, revoked: Sequence[str]) -> tuple[str, ...]:
    """Key files of the node that hold revoked keys and no others; they go."""
    return tuple(path for path, _, held in _key_files(facts) if held <= set(revoked))


def keyrings_rid_of(facts: NodeFacts, revoked: Sequence[str]) -> Iterator[tuple[str, File]]:
    """(a keyring of apt that goes, the file that has its other keys) where it holds revoked keys among others.

    Only keyrings that apt reads by their place: one that a source names has to stay where it is.
    """
    for path, data, held in _key_files(facts):
        if path.startswith("/etc/apt/trusted.gpg") and held & set(revoked) and held - set(revoked):
            stem = path.rpartition("/")[2].rpartition(".")[0]
            kept = f"/etc/apt/trusted.gpg.d/gpunode-kept-{stem}.asc"
            yield path, File(role="driver", option="sources", path=kept, text=without(data, revoked))


def _key_files(facts: NodeFacts) -> Iterator[tuple[str, bytes, set[str]]]:
    """(path, text, fingerprints) of each key file of the node."""
    for path, file in sorted(facts.files.items()):
        if not path.startswith(_KEY_FOLDERS) or not file.data:
            continue
        try:
            held = set(fingerprints(file.data))
        except InputError:
            continue  # no key at all, or one of a kind that apt passes over: not ours to judge
        yield path, file.data, held


def rival_files(repository: Repository, facts: NodeFacts) -> tuple[str, ...]:
    """Files that set up the same repository in another way and name nothing else; they go."""
    ours, folder = sources_path(repository.name, facts), f"{layout(facts).folder}/"
    places = (*CONFLICTS.get(repository.name, ()), re.sub(r"^\w+://", "", repository.url).rstrip("/"))
    found = []
    for path, file in facts.files.items():
        if not path.startswith(folder) or path == ours or not file.data:
            continue
        urls = _urls(file.data)
        if urls and all(url.startswith(places) for url in urls):
            found.append(path)
    return tuple(sorted(found))


def set_up_twice(facts: NodeFacts) -> dict[str, tuple[str, ...]]:
    """NVIDIA's repositories that several files name: address → paths."""
    folder, known = f"{layout(facts).folder}/", tuple(place for places in CONFLICTS.values() for place in places)
    found = grouped(
        (url, path)
        for path, file in sorted(facts.files.items())
        if path.startswith((folder, "/etc/apt/sources.list")) and file.data and not path.endswith((".save", "~"))
        for url in dict.fromkeys(u.rstrip("/") for u in _urls(file.data) if u.startswith(known))
    )
    return {url: tuple(paths) for url, paths in found.items() if len(paths) > 1}


def _urls(data: bytes) -> list[str]:
    """Addresses of repositories in a file of apt, dnf or zypper, without scheme; not those in comments."""
    text = re.sub(r"^[ \t]*gpgkey *=.*$", "", data.decode("utf-8", "replace"), flags=re.M)
    return re.findall(r"^[^#\n]*?\b\w+://([^\s]+)", text, re.M)
