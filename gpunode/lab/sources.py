"""What nodes are made from: their image, and what of the package repositories a node and its gpunode.yml name."""

from __future__ import annotations

from dataclasses import replace

from gpunode.lab import emulation, families, images, machine, nodes, packages, packages_vendor
from gpunode.lab.images import Variant
from gpunode.lab.machine import Log
from gpunode.lab.packages import RepositoryInfo, RepositorySource
from gpunode.lab.vm import images as vm


def image_of(variant: Variant, log: Log) -> tuple[str, RepositoryInfo]:
    """The image of such nodes and the package repository, both made when they are missing."""
    release = images.RELEASES[variant.distro]
    with machine.lock("repository", log=log):
        machine.install_missing_packages(log, *(() if release.arch == "amd64" else (emulation.PACKAGE,)))
        if variant.machine == "vm":
            return vm.tools(log), RepositoryInfo(directory=machine.places().repositories, sources=(), base={})
        machine.raise_inotify_limit(log)
        programs = packages_vendor.programs(log=log)
        info = packages.build_repository(machine.places().repositories, programs=programs, log=log)
        if release.family:
            tree = images.ensure_tree(variant, log=log)
            info = families.build(variant.distro, release.family, info.directory, tree, programs=programs, log=log)
        overlays = {}
        if release.vendor == "ubuntu":
            version = variant.distro.partition(":")[2]
            canonical = packages_vendor.canonical(version, log=log)
            more = packages.build_restricted(info.directory, version, canonical, programs=programs, log=log)
            info = replace(info, sources=(*info.sources, *more.sources))
            overlays = packages_vendor.overlays(programs, log=log)
    debs = () if variant.real_driver else info.base_packages(images.served(variant.distro))
    if release.arch == "amd64":
        return images.ensure_image(variant, debs, overlays=overlays, log=log), info
    try:
        with machine.lock(emulation.MAKING, log=log):
            emulation.register(log=log)
            return images.ensure_image(variant, debs, log=log), info
    finally:
        nodes.release_emulation(log=log)


def disk_of(variant: Variant, image: str, log: Log) -> str:
    """The disk of machines that boot; empty for a container."""
    return str(vm.disk(variant, image, log)) if variant.machine == "vm" else ""


def own_sources(info: RepositoryInfo, distro: str) -> list[RepositorySource]:
    """What a node of that distro has among its sources from the start."""
    names = ("kernels", "builder", "restricted", *(("non-free",) if images.RELEASES[distro].non_free else ()))
    return [s for s in info.sources if s.name in names and _serves(s, distro)]


def spec_sources(info: RepositoryInfo, distro: str, url: str) -> dict[str, dict[str, str]]:
    """gpunode.yml's `sources` for a node of that distro; the distribution's own are the node's affair."""
    return {
        source.name: {"url": f"{url}/{source.path}", "key": f"{url}/{source.key}", "fingerprint": source.fingerprint}
        for source in info.sources
        if source.name not in ("kernels", "non-free", "restricted", "builder", "epel") and _serves(source, distro)
    }


def _serves(source: RepositorySource, distro: str) -> bool:
    """Whether a node of that distro takes packages from there; what has no distro serves all of amd64."""
    return source.distro == images.served(distro) or (not source.distro and images.RELEASES[distro].arch == "amd64")
