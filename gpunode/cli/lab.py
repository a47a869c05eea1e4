"""`gpunode lab`: throw-away nodes on this machine with faked GPUs (docs/lab.md)."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import format_option, options
from gpunode.cli.completion import complete_lab_distros, complete_nodes
from gpunode.cli.output import echo, print_json
from gpunode.core.errors import InputError

if TYPE_CHECKING:
    from gpunode.edge.detect import Targets
    from gpunode.lab import Lab, Node

STILL = 20.0  # seconds between two lines of a step that takes long
_DISTRO = click.option(
    "--distro",
    default="debian:12",
    show_default=True,
    metavar="DISTRO",
    shell_complete=complete_lab_distros,
    help="debian:12, debian:13, debian:13+forky (newer engines), debian:12+non-free or debian:13+non-free (their own "
    "driver), debian:12+arm64 (aarch64, emulated by QEMU), ubuntu:22.04, ubuntu:24.04, ubuntu:26.04, rocky:8, "
    "rocky:9, rocky:10, fedora:43, sles:15 or arch.",
)
_SHAPE = (
    click.option(
        "--engines", default="containerd,docker", show_default=True, metavar="LIST", help="Container engines, or none."
    ),
    click.option("--no-python", is_flag=True, help="Nodes without python3."),
    click.option("--real-driver", is_flag=True, help="Debian's real NVIDIA packages instead of stub packages (slow)."),
)
_HARDWARE = (
    click.option(
        "--gpu",
        "gpus",
        multiple=True,
        default=("h100",),
        show_default=True,
        metavar="GPU",
        help="A GPU of each node: h100, 10de:2204, or none. Repeatable.",
    ),
    click.option("--nouveau/--no-nouveau", default=False, show_default=True, help="Nouveau drives the GPUs at first."),
)


@click.group(
    epilog="Examples:\n\n\b\n"
    "  gpunode lab up\n"
    "  gpunode lab up 4 --distro debian:13 --gpu h100 --gpu h100 --no-python\n"
    "  gpunode lab ssh gpunode-1 -- nvidia-smi\n"
    "  gpunode lab down --all"
)
def lab() -> None:
    """Throw-away nodes on this machine: real systemd, sshd, containerd and Docker; faked GPUs, kernel and driver."""


@lab.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode lab up\n"
    "  gpunode lab up 2 --distro debian:13 --gpu h100 --gpu 10de:2204 --name big\n"
    "  gpunode lab up --engines none --no-python --gpu none --name bare"
)
@click.argument("count", default=1, type=click.IntRange(1, 20), metavar="[N]")
@options(_DISTRO, *_SHAPE, *_HARDWARE)
@click.option("--name", default="gpunode", show_default=True, metavar="PREFIX", help="Nodes are called PREFIX-1 …")
@click.option(
    "--kubernetes",
    default="",
    metavar="DIR|VERSION",
    help="The nodes are a cluster: a folder with the programs of Kubernetes and etcd, or a version to fetch (1.36).",
)
@click.option(
    "--vendor",
    default="",
    envvar="GPUNODE_VENDOR",
    metavar="DIR",
    help="A folder with NVIDIA's own nvidia-ctk, nvidia-container-runtime …: they run in place of stubs.",
)
@click.option(
    "--machine",
    default="container",
    show_default=True,
    type=click.Choice(("container", "vm")),
    help="vm: it boots by itself under Secure Boot, with the distribution's own kernel and packages (QEMU; slow).",
)
@format_option("text", "json")
def up(count: int, name: str, kubernetes: str, vendor: str, machine: str, output_format: str, **shape: Any) -> None:
    """See to it that N nodes are up; those that are already stay as they are."""
    from gpunode.lab import up as lab_up

    hardware = {key: shape.pop(key) for key in ("gpus", "nouveau")}
    hardware |= {"kubernetes": kubernetes, "vendor": vendor, "machine": machine}
    with _steps() as log:
        made = lab_up(count, name=name, **hardware, log=log, **_shape(**shape))
    if output_format == "json":
        print_json(_lab_data(made))
        return
    _print_nodes(made.nodes)
    echo(f"\ninventory: {made.inventory}\nspec:      {made.spec}")
    if kubernetes:
        echo(f"kubectl:   export KUBECONFIG={made.kubeconfig}")
    echo(f"try next:  gpunode plan -i {made.inventory} -c {made.spec}")


@lab.command(epilog="Examples:\n\n\b\n  gpunode lab down big\n  gpunode lab down big-2\n  gpunode lab down --all")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_nodes)
@click.option("--all", "everything", is_flag=True, help="All nodes of all labs, the network and the package server.")
def down(names: tuple[str, ...], everything: bool) -> None:
    """Take nodes away: by name, or by the prefix they were made with."""
    from gpunode.lab import down as lab_down

    if not names and not everything:
        raise click.UsageError("name the nodes to take away, or say --all")
    with _steps() as log:
        gone = lab_down(names, everything=everything, log=log)
    echo(f"removed {' '.join(gone)}" if gone else "there was no node")


@lab.command(name="list", epilog="Examples:\n\n\b\n  gpunode lab list\n  gpunode lab list --format json")
@format_option("text", "json")
def list_(output_format: str) -> None:
    """Show the nodes that are there."""
    from gpunode.lab.nodes import load_nodes, running

    nodes, states = load_nodes(), running()
    if output_format == "json":
        print_json({"nodes": [_node_data(node) | {"state": states.get(node.name, "missing")} for node in nodes]})
    elif nodes:
        _print_nodes(nodes, states)
    else:
        echo("no node is up; `gpunode lab up` starts one")


@lab.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Examples:\n\n\b\n  gpunode lab ssh gpunode-1\n  gpunode lab ssh gpunode-1 -- nvidia-smi -L",
)
@click.argument("name", shell_complete=complete_nodes)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(name: str, command: tuple[str, ...]) -> None:
    """Log in to a node as root, or run COMMAND there."""
    from gpunode.lab.labs import find, ssh_config

    found = [node.name for node in find([name])]
    if found[1:]:
        raise InputError(f"{name} is a lab of several nodes", expected=f"one of {', '.join(found)}")
    os.execvp("ssh", ["ssh", "-F", str(ssh_config()), *found, *command])  # noqa: S606 - no shell is wanted


@lab.command(epilog="Examples:\n\n\b\n  gpunode lab reset gpunode-1")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_nodes)
def reset(names: tuple[str, ...]) -> None:
    """Put nodes back to their fresh image, with the same name and address."""
    from gpunode.lab import reset as lab_reset

    with _steps() as log:
        nodes = lab_reset(names, log=log)
    _print_nodes(nodes)


@lab.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode lab molecule molecule/default/nodes.yml -o .cache/molecule.yml\n"
    '  eval "$(gpunode lab molecule nodes.yml -o base.yml)" && molecule -c base.yml test'
)
@click.argument("nodes", type=click.Path(path_type=Path), metavar="NODES.yml")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The base configuration to write.")
def molecule(nodes: Path, output: Path) -> None:
    """Prepare the nodes of a Molecule scenario and write its base configuration, for `molecule -c`.

    NODES.yml lists the nodes: `- {name: web-1, distro: debian:12, gpus: [h100], engines: [containerd]}`.  The shell
    command that sets Molecule's environment is printed.
    """
    from gpunode.lab.molecule import read_nodes, write_base

    with _steps() as log:
        environment = write_base(read_nodes(nodes), output, log=log)
    for name, value in environment.items():
        echo(f"export {name}={shlex.quote(value)}")


# ---------------------------------------------------------------- words in, words out


def _shape(distro: str, engines: str, no_python: bool, real_driver: bool) -> dict[str, Any]:
    chosen = tuple(word for word in engines.replace(" ", "").split(",") if word not in ("", "none"))
    return {"distro": distro, "engines": chosen, "python": not no_python, "real_driver": real_driver}


@contextmanager
def _steps() -> Iterator[Callable[[str], None]]:
    """Says each step, and while it takes long, for how long it is at it: the first node of a kind is minutes away."""
    from gpunode.core.report.model import duration
    from gpunode.edge.side_by_side import beating

    step: list[Any] = ["", time.monotonic()]

    def log(message: str) -> None:
        step[:] = message, time.monotonic()
        echo(message, err=True)

    def still() -> str:
        took = time.monotonic() - step[1]
        return f"  {duration(int(took))}: still {step[0]}" if step[0] and took >= STILL else ""

    with beating(still, STILL, lambda text: echo(text, err=True)):
        yield log


def _node_data(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "lab": node.lab,
        "address": node.address,
        "distro": node.distro,
        "engines": list(node.engines),
        "python": node.python,
        "gpus": list(node.gpus),
        "machine": node.machine,
        "kubernetes": "control plane" if node.control else "node" if node.kubernetes else "",
    }


def _lab_data(made: Lab) -> dict[str, Any]:
    names = ["inventory", "spec", "ssh_config", "known_hosts", *(["kubeconfig"] if made.kubeconfig.exists() else [])]
    files = {name: str(getattr(made, name)) for name in names}
    return {"lab": made.name, "nodes": [_node_data(node) for node in made.nodes], **files}


def _print_nodes(nodes: Any, states: dict[str, str] | None = None) -> None:
    for node in nodes:
        engines = "control plane" if node.control else ",".join(node.engines) or "no engines"
        gpus = "of Kubernetes" if node.control else ",".join(node.gpus) or "no GPU"
        state = f"  {states.get(node.name, 'missing')}" if states is not None else ""
        echo(f"{node.name:<15} {node.address:<15} {node.distro:<16} {engines:<18} {gpus}{state}")


def target(targets: Targets, spec_data: dict[str, Any]) -> tuple[Targets, dict[str, Any]]:
    """`--lab`: the lab's nodes as hosts (one is started when none is up), and the spec over the lab's own sources."""
    import dataclasses

    import yaml

    from gpunode.core.spec import merge_spec
    from gpunode.lab import load_lab
    from gpunode.lab import up as lab_up

    made = load_lab("gpunode")
    if not made.nodes:
        with _steps() as log:
            made = lab_up(log=log)
    lab_spec = yaml.safe_load(made.spec.read_text())
    return dataclasses.replace(targets, inventory=(str(made.inventory),), listing=None), merge_spec(lab_spec, spec_data)
