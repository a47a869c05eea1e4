"""Package repositories as files on the node: one sources file and one key that it names."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from gpunode.core.errors import InputError
from gpunode.core.model import NodeFacts, Repository
from gpunode.core.openpgp import fingerprints, without

# Where each repository has been set up by others; a file beside ours gives every package twice, and makes apt fail:
# «Conflicting values set for option Signed-By» (NVIDIA/cuda-repo-management issue 4, NVIDIA/nvidia-docker issue 1631).
RIVALS: Mapping[str, tuple[str, ...]] = {
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
class SourceFile:
    """A small text file we own.  `text` None: it must not be there, or (with `repository`) it is that one's key."""

    path: str
    text: str | None
    mode: str = "0644"
    repository: Repository | None = None


@functools.cache
def _compiled(template: str) -> jinja2.Template:
    compiled: jinja2.Template = jinja2.Template(template, keep_trailing_newline=True)
    return compiled


def render(template: str, **values: Any) -> str:
    """The text that a jinja2 template gives; each is compiled once, which takes far longer than to fill it in."""
    return _compiled(template).render(**values)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a package manager has its sources and keys; {name} is the repository's."""

    folder: str
    sources: str
    key: str
    template: str


# apt reads armored keys by the ending .asc (man sources.list(5), DEB822-STYLE FORMAT; man yum.conf(5); man zypper(8))
_RPM_KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gpunode-{name}"
LAYOUTS = {
    "apt": Layout(
        folder="/etc/apt/sources.list.d",
        sources="gpunode-{name}.sources",
        key="/usr/share/keyrings/gpunode-{name}.asc",
        template="apt.sources.j2",
    ),
    "dnf": Layout(folder="/etc/yum.repos.d", sources="gpunode-{name}.repo", key=_RPM_KEY, template="rpm.repo.j2"),
    "pacman": Layout(
        folder="/etc/pacman.d",
        sources="gpunode-{name}.conf",
        key="/etc/pacman.d/gpunode-{name}.asc",
        template="pacman.conf.j2",
    ),
    "zypper": Layout(folder="/etc/zypp/repos.d", sources="gpunode-{name}.repo", key=_RPM_KEY, template="rpm.repo.j2"),
}


def layout(facts: NodeFacts) -> Layout:
    """The layout of the node's package manager; apt's where the probe did not say."""
    return LAYOUTS.get(facts.package_manager, LAYOUTS["apt"])


def key_path(repository: Repository, facts: NodeFacts) -> str:
    """Where the repository's armored key lies."""
    return layout(facts).key.format(name=repository.name)


def sources_path(name: str, facts: NodeFacts) -> str:
    """Where the repository of that name is set up."""
    where = layout(facts)
    return f"{where.folder}/{where.sources.format(name=name)}"


def source_files(repository: Repository, facts: NodeFacts, templates: Mapping[str, str]) -> tuple[SourceFile, ...]:
    """The key and the sources file of a repository."""
    text = render(
        templates[layout(facts).template],
        repository=repository,
        architecture={"x86_64": "amd64", "aarch64": "arm64"}.get(facts.arch, facts.arch),
        key=key_path(repository, facts),
        manager=facts.package_manager,
    )
    key = SourceFile(path=key_path(repository, facts), text=None, repository=repository)
    return (key, SourceFile(path=sources_path(repository.name, facts), text=text))


def revoked_files(facts: NodeFacts, revoked: Sequence[str]) -> tuple[str, ...]:
    """Key files of the node that hold revoked keys and no others; they go."""
    found = []
    for path, file in facts.files.items():
        if not path.startswith(_KEY_FOLDERS) or not file.data:
            continue
        try:
            held = fingerprints(file.data)
        except InputError:
            continue  # no key at all: not ours to judge
        if set(held) <= set(revoked):
            found.append(path)
    return tuple(sorted(found))


def keyrings_rid_of(facts: NodeFacts, revoked: Sequence[str]) -> Iterator[tuple[str, SourceFile]]:
    """(a keyring of apt that goes, the file that has its other keys) where it holds revoked keys among others.

    Only keyrings that apt reads by their place: one that a source names has to stay where it is.
    """
    for path, file in sorted(facts.files.items()):
        if not path.startswith("/etc/apt/trusted.gpg") or not file.data:
            continue
        try:
            held = set(fingerprints(file.data))
            rest = without(file.data, revoked) if held & set(revoked) and held - set(revoked) else ""
        except InputError:
            continue  # no key at all, or one of a kind that apt passes over
        if rest:
            stem = path.rpartition("/")[2].rpartition(".")[0]
            yield path, SourceFile(path=f"/etc/apt/trusted.gpg.d/gpunode-kept-{stem}.asc", text=rest)


def rival_files(repository: Repository, facts: NodeFacts) -> tuple[str, ...]:
    """Files that set up the same repository in another way and name nothing else; they go."""
    ours, folder = sources_path(repository.name, facts), f"{layout(facts).folder}/"
    places = (*RIVALS.get(repository.name, ()), re.sub(r"^\w+://", "", repository.url).rstrip("/"))
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
    folder, known = f"{layout(facts).folder}/", tuple(place for places in RIVALS.values() for place in places)
    found: dict[str, list[str]] = {}
    for path, file in sorted(facts.files.items()):
        if path.startswith((folder, "/etc/apt/sources.list")) and file.data and not path.endswith((".save", "~")):
            for url in dict.fromkeys(u.rstrip("/") for u in _urls(file.data) if u.startswith(known)):
                found.setdefault(url, []).append(path)
    return {url: tuple(paths) for url, paths in found.items() if len(paths) > 1}


def _urls(data: bytes) -> list[str]:
    """Addresses of repositories in a file of apt, dnf or zypper, without scheme; not those in comments."""
    text = re.sub(r"^\s*gpgkey *=.*$", "", data.decode("utf-8", "replace"), flags=re.M)
    return re.findall(r"^[^#\n]*?\b\w+://([^\s]+)", text, re.M)
