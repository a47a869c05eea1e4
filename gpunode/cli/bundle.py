"""gpunode bundle."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import NEW_FILE, format_option, spec_option
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import Exit, InputError
from gpunode.core.printable import json_text

if TYPE_CHECKING:
    from gpunode.core.bundle.manifest import Manifest
    from gpunode.core.bundle.target import BundleTarget
    from gpunode.core.bundle.upstream import Upstream
    from gpunode.core.model import NodeFacts
    from gpunode.edge.desired import DesiredState


@click.group(
    epilog="Examples:\n\n\b\n"
    "  gpunode bundle create -c gpunode.yml --for debian:12/x86_64 --gpu H100 -o bundle\n"
    "  gpunode bundle verify bundle\n"
    "  gpunode bundle serve bundle --port 8080"
)
def bundle() -> None:
    """All that nodes without a network need: signed repositories of their own, made here and checked there."""


@bundle.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode bundle create --for ubuntu:24.04/x86_64,debian:12/x86_64 --gpu 10de:2330 -o bundle\n"
    "  gpunode bundle create -c gpunode.yml --probe saved/ -o bundle.tar\n"
    "  gpunode bundle create --for debian:12/x86_64 --gpu H100 --package nvtop --base base.txt -o bundle\n"
    "  gpunode bundle create --for rocky:9/x86_64 --gpu H100 --repositories rocky:9/x86_64=yum.repos.d -o bundle\n\n"
    "Exit codes: 0 made, 1 something cannot be fetched, 2 usage, 5 a signature, or packages that do not go together."
)
@click.option("--for", "targets", multiple=True, metavar="DISTRO/ARCH,…", help="Targets, such as ubuntu:24.04/x86_64.")
@click.option(
    "--gpu", "gpus", multiple=True, metavar="ID|NAME", help="A GPU the nodes have; again for each further kind."
)
@click.option("--kernel", "kernels", multiple=True, metavar="RELEASE", help="A kernel the nodes have; again for each.")
@click.option(
    "--probe", "probes", multiple=True, type=click.Path(path_type=Path), help="Saved probes: their GPUs and kernels."
)
@click.option("--package", "packages", multiple=True, metavar="NAME[=VERSION]", help="One more package; repeatable.")
@click.option(
    "--base",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A list of what every node has already, one package a line; without it nothing is taken for granted.",
)
@click.option(
    "--repositories",
    multiple=True,
    metavar="TARGET=PATH",
    help="The distribution's repositories, by files of apt/sources.list.d, yum.repos.d or zypp/repos.d.",
)
@click.option("--wheels", multiple=True, metavar="REQUIREMENT", help="Wheels, such as gpunode[bundle]; repeatable.")
@click.option("--cluster", is_flag=True, help="Charts, and a list of images, of what gpunode kube render makes.")
@click.option("--allow-expired", is_flag=True, help="Take lists of packages whose time is over (of a snapshot, say).")
@click.option("--url", default="", help="Where the nodes will find it: writes sources.yml for it.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="A folder, or a file NAME.tar.")
@spec_option
@format_option("text", "json")
def create(
    targets: tuple[str, ...],
    gpus: tuple[str, ...],
    kernels: tuple[str, ...],
    probes: tuple[Path, ...],
    packages: tuple[str, ...],
    base: Path | None,
    repositories: tuple[str, ...],
    wheels: tuple[str, ...],
    cluster: bool,
    allow_expired: bool,
    url: str,
    output: Path,
    spec_data: dict[str, Any],
    output_format: str,
) -> int:
    """Fetch the exact packages that gpunode.yml asks for, with all they need, and make signed repositories of them.

    What was fetched is kept below ~/.cache/gpunode/bundle: run it again, and it continues where it stopped.
    """
    from gpunode.core.bundle.manifest import NOTHING
    from gpunode.core.solve import find_gpu
    from gpunode.edge.bundle.create import Order
    from gpunode.edge.bundle.create import create as make
    from gpunode.edge.bundle.store import Store, Web
    from gpunode.edge.desired import DesiredState
    from gpunode.edge.state import cache_path

    desired = DesiredState(spec_data, to_run=False)
    known = desired.knowledge
    facts = _probed(probes, desired)
    order = Order(
        targets=tuple(dict.fromkeys([*_targets(targets, desired), *facts])),
        gpus=tuple(find_gpu(gpu, known) for gpu in gpus),
        kernels=kernels,
        facts=facts,
        repositories=dict(_given(row, desired) for row in repositories),
        base=_base(base),
        base_name=base.name if base else NOTHING,
        packages=packages,
        expired=allow_expired,
        wheels=wheels,
        cluster=cluster,
    )
    if not order.targets:
        raise click.UsageError("name the targets (--for), or saved probes (--probe)")
    store = Store(cache_path("bundle"), Web(desired.opened_spec().proxy))
    with _telling() as notify:
        manifest = make(order, desired, store, output, url=url, notify=notify)
    if output_format == "json":
        print_json(_summary(manifest, str(output)))
        return Exit.OK
    echo(f"{output}: {_words(manifest)}; its key is {manifest.fingerprint}")
    if not url:
        echo(f"next: gpunode bundle sources {output} --url URL, the part of gpunode.yml that has nodes use it")
    return Exit.OK


@bundle.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode bundle verify bundle\n"
    "  gpunode bundle verify http://depot/gpu --sha256 c439e057…\n\n"
    "Exit codes: 0 whole, 1 damaged or incomplete, 2 no bundle, 5 another one than --sha256 or its signature say."
)
@click.argument("place")
@click.option("--sha256", default="", metavar="HEX", help="What manifest.json has to have.")
@format_option("text", "json")
def verify(place: str, sha256: str, output_format: str) -> int:
    """Compare every file of a bundle (folder, .tar or URL) with its manifest, and that with its signature."""
    from dataclasses import asdict

    from gpunode.edge.bundle.agree import disagreements
    from gpunode.edge.bundle.verify import (
        check_manifest_signature,
        damages,
        inconsistencies,
        place_of,
        read_manifest,
        unknown_files,
    )

    where = place_of(place)
    manifest, found = read_manifest(where, sha256)
    check_manifest_signature(where, manifest)
    with _telling() as notify:
        broken = damages(where, manifest.files, notify=lambda done, of: notify(f"compared {done} of {of} files"))
    odd, extra = list(inconsistencies(manifest)), unknown_files(where, manifest)
    if not (broken or odd):
        odd = list(disagreements(where, manifest))
    good = not broken and not odd
    if output_format == "json":
        print_json(
            {**_summary(manifest, place), "sha256": found, "whole": good, "damaged": [asdict(b) for b in broken]}
            | {"inconsistent": odd, "unknown": extra}
        )
        return Exit.OK if good else Exit.FAILED
    for one in broken:
        echo(f"{one.path}: {one.what}")
    for line in odd:
        echo(line)
    for path in extra:
        echo(f"{path}: the manifest does not name it")
    echo(f"{place}: {_words(manifest)}, {'whole' if good else 'NOT whole'}")
    echo(f"made {manifest.created}, key {manifest.fingerprint}, manifest {found}")
    return Exit.OK if good else Exit.FAILED


@bundle.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode bundle sources bundle --url http://depot/gpu\n"
    "  gpunode bundle sources bundle --url file:///srv/gpunode -c gpunode.yml -o airgap.yml\n\n"
    "Exit codes: 0 written, 2 no bundle."
)
@click.argument("place")
@click.option("--url", required=True, help="Where the nodes find it: http://…, or file:///… of a folder they have.")
@click.option("-o", "--output", type=NEW_FILE, help="A file to write to.")
@spec_option
@format_option("yaml", "json")
def sources(place: str, url: str, output: Path | None, spec_data: dict[str, Any], output_format: str) -> int:
    """Print the part of gpunode.yml that has nodes use a bundle, merged into what -c names."""

    from gpunode.core.bundle.manifest import KEY, fragment
    from gpunode.core.spec import merge_spec, parse_spec
    from gpunode.core.yaml_text import yaml_text
    from gpunode.edge.bundle.verify import place_of, read_manifest
    from gpunode.edge.state import write_private

    where = place_of(place)
    manifest, found = read_manifest(where)
    with where.open(KEY) as file:
        key = file.read().decode()
    part = fragment(manifest, url, key, found)
    if url.startswith("file:") and Path(place).is_dir():
        part["bundle"]["path"] = str(Path(place).resolve())
    data = merge_spec(spec_data, part)
    parse_spec(data)
    text = yaml_text(data) if output_format == "yaml" else json_text(data, indent=2) + "\n"
    if output:
        write_private(output, text)  # it may have a password of yours
    else:
        echo(text, nl=False)
    return Exit.OK


@bundle.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode bundle serve bundle\n"
    "  gpunode bundle serve bundle --address 10.0.0.5 --port 8080\n\n"
    "Exit codes: 0 stopped by Ctrl-C, 1 the port is taken or the bundle is damaged, 2 no bundle."
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--address", default="0.0.0.0", show_default=True, help="Address to listen at.")  # noqa: S104
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 takes a free one."
)
@format_option("text", "json")
def serve(folder: Path, address: str, port: int, output_format: str) -> int:
    """Serve a bundle over HTTP until Ctrl-C, once it is proven whole; sources.yml in it names the address."""
    from gpunode.core.bundle.manifest import KEY, fragment
    from gpunode.core.yaml_text import yaml_text
    from gpunode.edge.bundle.serve import own_address, server

    manifest, found = _whole(folder)
    with server(folder, address, port) as listening:
        host = own_address() if address == "0.0.0.0" else address  # noqa: S104
        url = f"http://{host}:{listening.server_port}"
        text = yaml_text(fragment(manifest, url, (folder / KEY).read_text(), found))
        (folder / "sources.yml").write_text(text, encoding="utf-8")
        if output_format == "json":
            print_json({"url": url, "sources": str(folder / "sources.yml")})
            sys.stdout.flush()
        else:
            echo(f"serving {folder} at {url}; the lines for gpunode.yml: {folder / 'sources.yml'}")
        try:
            listening.serve_forever()
        except KeyboardInterrupt:
            return Exit.OK
    return Exit.OK


@bundle.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode bundle push bundle root@depot:/srv/gpunode\n\n"
    "Exit codes: 0 there and whole, 1 damaged, 2 usage, 4 unreachable."
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("destinations", metavar="[USER@]HOST:/FOLDER…", nargs=-1, required=True)
@click.option("--accept-new-host-keys", is_flag=True, help="Trust host keys that known_hosts does not have yet.")
@format_option("text", "json")
def push(folder: Path, destinations: tuple[str, ...], accept_new_host_keys: bool, output_format: str) -> int:
    """Copy what hosts lack of a bundle over SSH; each compares all of it, then loses what only an older bundle had."""
    from gpunode.edge.bundle.push import push as copy
    from gpunode.edge.bundle.store import progress

    manifest, _ = _whole(folder)
    done = {}
    for destination in destinations:
        with _telling() as notify:
            done[destination] = copy(
                folder,
                manifest,
                destination,
                accept_new=accept_new_host_keys,
                notify=lambda *numbers: notify(progress("copied", *numbers)),
            )
        if output_format == "text":
            for path in done[destination].removed:
                echo(f"{destination}: {path} removed: only an older bundle had it")
            echo(f"{destination}: {done[destination].copied} files copied, all of it is whole")
    if output_format == "json":
        print_json({key: {to: getattr(one, key) for to, one in done.items()} for key in ("copied", "removed")})
    return Exit.OK


def _whole(folder: Path) -> tuple[Manifest, str]:
    """The manifest of a bundle of which no file is damaged, and its SHA-256.  Raises GpunodeError."""
    from gpunode.edge.bundle.verify import damages, place_of, read_manifest, refuse_damaged

    where = place_of(str(folder))
    manifest, found = read_manifest(where)
    refuse_damaged(where, damages(where, manifest.files, remembered=True))
    return manifest, found


# ---------------------------------------------------------------- options


def _targets(given: Iterable[str], desired: DesiredState) -> list[BundleTarget]:
    from gpunode.core.bundle.target import parse_target

    return [parse_target(one, desired.knowledge) for text in given for one in text.split(",") if one]


def _probed(paths: tuple[Path, ...], desired: DesiredState) -> dict[BundleTarget, tuple[NodeFacts, ...]]:
    """The machines of saved probes, by target."""
    if not paths:
        return {}
    from gpunode.core.bundle.target import parse_target
    from gpunode.edge.detect import Targets, detect

    found: dict[BundleTarget, tuple[NodeFacts, ...]] = {}
    for one in detect(Targets(probes=paths)):
        if one.error:
            raise one.error
        if one.facts and one.facts.gpus:
            target = parse_target(f"{one.facts.distro.key}/{one.facts.arch}", desired.knowledge)
            found[target] = (*found.get(target, ()), one.facts)
    return found


def _given(text: str, desired: DesiredState) -> tuple[BundleTarget, tuple[Upstream, ...]]:
    """TARGET=PATH → the repositories that the file, or the files of the folder, name."""
    from gpunode.core.bundle.target import parse_target
    from gpunode.edge.bundle.reference import read_repositories

    name, equals, path = text.partition("=")
    if not equals or not Path(path).exists():
        raise InputError(f"--repositories {text!r}", expected="TARGET=PATH of a file or folder that is there")
    target = parse_target(name, desired.knowledge)
    return target, read_repositories(Path(path), target)


def _base(path: Path | None) -> frozenset[str]:
    """The names in a list such as `dpkg-query -W` or `rpm -qa --qf '%{NAME}\\n'` print."""
    if path is None:
        return frozenset()
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(line.split()[0].partition(":")[0] for line in lines if line.strip() and not line.startswith("#"))


# ---------------------------------------------------------------- words


SELDOM = 30  # seconds between two lines of progress in a log


class _telling:
    """Progress on stderr: one line that changes on a terminal, else a line now and then."""

    def __enter__(self) -> Callable[[str], None]:
        self._live, self._last, self._printed = sys.stderr.isatty(), "", time.monotonic()
        return self._report

    def _report(self, text: str) -> None:
        self._last = text
        if self._live:
            echo(text, err=True, nl=False, over=True)
        elif not re.match(r"\w+ \d+ of \d+ ", text) or time.monotonic() - self._printed > SELDOM:
            echo(text, err=True)
            self._last, self._printed = "", time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self._last:
            echo("" if self._live else self._last, err=True)


def _summary(manifest: Manifest, place: str) -> dict[str, Any]:
    return {
        "bundle": place,
        "created": manifest.created,
        "fingerprint": manifest.fingerprint,
        "targets": {
            target: {name: len(packages) for name, packages in part.repositories.items()}
            for target, part in manifest.targets.items()
        },
        "files": len(manifest.files),
        "bytes": sum(stored.size for stored in manifest.files.values()),
    }


def _words(manifest: Manifest) -> str:
    packages = sum(len(p) for part in manifest.targets.values() for p in part.repositories.values())
    size = sum(stored.size for stored in manifest.files.values()) >> 20
    return f"{packages} packages for {', '.join(sorted(manifest.targets))}, {size} MiB"
