"""gpunode init."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import format_option, show_error
from gpunode.cli.output import echo, print_json
from gpunode.core.engines import ENGINES
from gpunode.core.errors import InputError
from gpunode.core.late import dataclass, replace
from gpunode.core.spec.kubernetes import MODES, SHARED

if TYPE_CHECKING:
    from gpunode.core.spec.starter import Answers
    from gpunode.edge.detect import Detected, Targets

CHOICES = ("auto", *ENGINES)
STRATEGIES = tuple(MODES)
REBOOT = ("never", "if-needed", "always")


@click.command(
    epilog="Examples:\n\n\b\n"
    "  gpunode init                                    (asks)\n"
    "  gpunode init --local --detect --yes\n"
    "  gpunode init root@gpu1 admin@gpu2:2222 -b --engine containerd --yes -o site/\n"
    "  gpunode init gpu1 --kubernetes 1.34 --sharing time-slicing --replicas 4 --yes\n"
    "  gpunode init gpu1 --sharing mig --mig 3g.40gb=2 --yes --force\n\n"
    "Exit codes: 0 written, 2 usage or input, 4 a host to look at is unreachable, 5 a file is there already."
)
@click.argument("hosts", nargs=-1, metavar="[HOST]...")
@click.option("--local", is_flag=True, help="The node is this machine.")
@click.option("--detect/--no-detect", default=None, help="Look at the nodes first; changes nothing on them.")
@click.option("-b", "--become", is_flag=True, help="Become root by sudo on the nodes.")
@click.option(
    "--accept-new-host-keys", is_flag=True, help="For --detect: add the keys of hosts that known_hosts does not know."
)
@click.option(
    "--engine", type=click.Choice(CHOICES), help="auto configures what is there; containerd and docker install."
)
@click.option("--cuda", "cuda", multiple=True, metavar="V", help="CUDA toolkit on the host: 12.8, newest. Repeatable.")
@click.option("--kubernetes", "server_version", metavar="V", help="The API server's version, such as 1.34.")
@click.option("--sharing", "strategy", type=click.Choice(STRATEGIES), help="How containers share a GPU.")
@click.option("--replicas", type=click.IntRange(2), help=f"Shares of a GPU, for {' and '.join(SHARED)}.")
@click.option("--mig", "mig", metavar="PROFILE=N…", help="MIG instances of every GPU, such as '3g.40gb=2'.")
@click.option("--reboot", type=click.Choice(REBOOT), help="May provision reboot a node?")
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), default=".", metavar="DIR", help="Where to.")
@click.option("--force", is_flag=True, help="Overwrite existing gpunode.yml and hosts.yml.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask: what no option says has its default.")
@format_option("text", "json")
def init(
    hosts: tuple[str, ...],
    local: bool,
    detect: bool | None,
    become: bool,
    accept_new_host_keys: bool,
    folder: Path,
    force: bool,
    yes: bool,
    output_format: str,
    **given: Any,
) -> int:
    """Write a first gpunode.yml and an inventory, hosts.yml, after a few questions.

    What an option says is not asked.  HOST is [user@]host[:port]; without any, the node is this machine.
    """
    from gpunode.core.spec.starter import inventory_text, spec_data, spec_text
    from gpunode.edge.starter import INVENTORY, SPEC, host_variables, refuse_to_overwrite, write_files

    asking = not yes
    if asking and not sys.stdin.isatty():
        raise InputError("no terminal to ask questions on", expected="a terminal, or --yes", fix="add --yes")
    refuse_to_overwrite(folder, force=force)
    targets = replace(
        _targets(hosts, local=local, become=become, asking=asking), accept_new_host_keys=accept_new_host_keys
    )
    nodes = _nodes(targets, detect, asking=asking)
    answers = _answers(nodes, given, asking=asking)
    texts = {SPEC: spec_text(answers, _findings(nodes)), INVENTORY: inventory_text(host_variables(nodes))}
    write_files(folder, texts, force=force)
    if output_format == "json":
        print_json({"files": {name: str(folder / name) for name in texts}, "spec": spec_data(answers)})
        return 0
    echo(f"written: {folder / SPEC}, {folder / INVENTORY}")
    echo("next:    gpunode plan" + ("" if folder == Path() else f" -c {folder / SPEC}"))
    return 0


# ---------------------------------------------------------------- the nodes


def _targets(hosts: tuple[str, ...], *, local: bool, become: bool, asking: bool) -> Targets:
    """The hosts of the line, or those that a person names; this machine where there are none."""
    from gpunode.edge.detect import Targets

    if asking and not hosts and not local:
        hosts = _ask_hosts()
    if not hosts:
        return Targets(local=True, become=become or os.geteuid() != 0)
    return Targets(hosts=hosts, local=local, become=become or (asking and _ask_become(hosts)))


def _ask_hosts() -> tuple[str, ...]:
    text = click.prompt(
        "Nodes, as [user@]host[:port], with blanks between them; nothing for this machine",
        default="",
        show_default=False,
        err=True,
    )
    return tuple(text.replace(",", " ").split())


def _ask_become(hosts: tuple[str, ...]) -> bool:
    """Whether to become root by sudo: asked where somebody else than root is to log in."""
    others = [h for h in hosts if (h.partition("@")[0] if "@" in h else getpass.getuser()) != "root"]
    return bool(others) and click.confirm(f"Become root by sudo ({', '.join(others)})?", default=True, err=True)


def _nodes(targets: Targets, detect: bool | None, *, asking: bool) -> list[Detected]:
    """The nodes, with what was found on them where they are to be looked at."""
    from gpunode.edge.detect import find_hosts

    nodes = find_hosts(targets)
    if asking and detect is None:
        detect = click.confirm("Look at the nodes first? It changes nothing", default=True, err=True)
    if detect:
        nodes = _look(nodes, targets, asking=asking)
        for line in _findings(nodes):
            echo(f"  {line}", err=True)
    return nodes


def _look(nodes: list[Detected], targets: Targets, *, asking: bool) -> list[Detected]:
    """The nodes as they are; a person is asked about unknown host keys, and may go on without what cannot be read."""
    from gpunode.edge.detect import probe
    from gpunode.edge.ssh.hostkeys import HostKeyUnknown

    looked = probe(nodes, targets)
    unknown = [node for node in looked if isinstance(node.error, HostKeyUnknown)]
    if asking and unknown:
        for node in unknown:
            echo(str(node.error and node.error.what), err=True)
        echo("compare with: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub, on the node itself", err=True)
        if click.confirm("Trust these keys, and add them to known_hosts?", default=False, err=True):
            again = {node.host: node for node in probe(unknown, replace(targets, accept_new_host_keys=True))}
            looked = [again.get(node.host, node) for node in looked]
    failed = [node.error for node in looked if node.error]
    if not failed:
        return looked
    for error in failed if asking else failed[1:]:
        show_error(error)
    if not asking or not click.confirm("Go on without looking at these nodes?", default=True, err=True):
        raise failed[0]
    return looked


def _findings(nodes: list[Detected]) -> list[str]:
    """A line for each node that was looked at."""
    from gpunode.cli.detect import gpu_summary

    lines = []
    for node in nodes:
        if node.facts:
            facts = node.facts
            engines = ", ".join(f"{r.name} {r.version}".strip() for r in facts.runtimes) or "no container engine"
            kube = (
                f"; {facts.kubernetes.kind or 'kubelet'} {facts.kubernetes.kubelet}" if facts.kubernetes.present else ""
            )
            system = facts.distro.name or facts.distro.key or "unknown distribution"
            lines.append(f"{node.host}: {system}, {facts.arch}; GPUs: {gpu_summary(facts)}; {engines}{kube}")
            if not facts.gpus:
                lines.append(f"{node.host}: warning: no NVIDIA GPU on PCI; plan, provision and verify exit with 3")
    return lines


# ---------------------------------------------------------------- the questions


@dataclass(frozen=True)
class Question:
    """One question: the field of the answers, `default` in the words of a person, and what a reply means."""

    name: str
    text: str
    type: click.ParamType[Any] | None = None
    default: Callable[[Answers], object] | None = None  # None: what the answers have
    value: Callable[[Any], object] = lambda reply: reply
    needed: Callable[[Answers], bool] = lambda answers: True


def _instances(text: str) -> dict[str, int]:
    from gpunode.core.spec.starter import parse_instances

    return parse_instances(text)


QUESTIONS = (
    Question("engine", "Container engine (auto: what is there)", click.Choice(CHOICES)),
    Question(
        "cuda", "CUDA toolkits on the host: versions, newest, or none (containers bring their own)",
        default=lambda answers: " ".join(answers.cuda) or "none",
        value=lambda text: () if text == "none" else tuple(text.replace(",", " ").split()),
    ),
    Question(
        "server_version", "Kubernetes version, such as 1.34, or none",
        default=lambda answers: answers.server_version or "none", value=lambda text: "" if text == "none" else text,
    ),
    Question("strategy", "How containers share a GPU", click.Choice(STRATEGIES)),
    Question(
        "replicas", "Shares of a GPU", click.IntRange(2), default=lambda _: 4,
        needed=lambda answers: MODES[answers.strategy].most > 0,
    ),
    Question(
        "mig", "MIG instances of every GPU (such as 3g.40gb=2)", default=lambda _: None, value=_instances,
        needed=lambda answers: answers.strategy == "mig",
    ),
    Question("reboot", "May provision reboot a node?", click.Choice(REBOOT)),
)  # fmt: skip


def _answers(nodes: list[Detected], given: dict[str, Any], *, asking: bool) -> Answers:
    """What options say; of the rest what a person says, or what fits the nodes.  Raises InputError."""
    from gpunode.core.spec.starter import check, suggested

    stated = {key: value for key, value in given.items() if value}
    if "mig" in stated:
        stated = {"strategy": "mig"} | stated | {"mig": _instances(stated["mig"])}
    if "replicas" in stated:
        stated = {"strategy": "time-slicing"} | stated
    answers = replace(suggested([node.facts for node in nodes if node.facts]), **stated)
    for question in QUESTIONS if asking else ():
        if not given[question.name] and question.needed(answers):
            default = question.default(answers) if question.default else getattr(answers, question.name)
            reply = click.prompt(question.text, default=default, type=question.type, err=True)
            reading: dict[str, Any] = {question.name: question.value(reply)}
            answers = replace(answers, **reading)
    check(answers)
    return answers
