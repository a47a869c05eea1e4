"""A first gpunode.yml and a first inventory, out of a few answers."""

from __future__ import annotations

import dataclasses
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import yaml

from gpunode.core.engines import ROWS, RuntimeName
from gpunode.core.errors import InputError
from gpunode.core.late import dataclass, field
from gpunode.core.model import NodeFacts
from gpunode.core.numbers import release
from gpunode.core.spec import Spec
from gpunode.core.spec.kubernetes import MODES, SHARED, Strategy

Engine = Literal["auto", RuntimeName]
Reboot = Literal["never", "if-needed", "always"]
_INSTALLABLE = [name for name, row in ROWS.items() if row.installs]  # the others are configured alone
_WIDTH = 100  # columns of a comment
_GROUP = "gpus"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What `gpunode init` asks.  `mig` is profile → instances, `server_version` MAJOR.MINOR or "" for no cluster."""

    engine: Engine = "auto"
    cuda: tuple[str, ...] = ()
    server_version: str = ""
    strategy: Strategy = "none"
    replicas: int = 0
    mig: Mapping[str, int] = field(default_factory=dict)
    reboot: Reboot = "if-needed"


def suggested(nodes: Sequence[NodeFacts]) -> Answers:
    """What fits nodes that were looked at: Docker where no engine is, the oldest kubelet's version of Kubernetes."""
    if not nodes:
        return Answers()
    kubelets = [release(n.kubernetes.kubelet) for n in nodes if n.kubernetes.kubelet]
    bare = not any(n.runtimes or n.kubernetes.present for n in nodes)
    return Answers(
        engine="docker" if bare else "auto",
        server_version="{}.{}".format(*min(kubelets)) if kubelets else "",
    )


def parse_instances(text: str) -> dict[str, int]:
    """`3g.40gb=2 1g.10gb=1` → instances by profile.  Raises InputError."""
    found = {}
    for word in re.split(r"[\s,]+", text.strip()):
        parts = re.fullmatch(r"([\w.+-]+)=([1-9]\d*)", word)
        if not parts:
            raise InputError(
                f"MIG instances {text!r}", expected="PROFILE=COUNT …, such as 3g.40gb=2", fix="gpunode sharing profiles"
            )
        found[parts[1]] = int(parts[2])
    return found


def check(answers: Answers) -> None:
    """Raise InputError for answers that no node or cluster could follow."""
    mode = MODES[answers.strategy]
    if bool(mode.most) != bool(answers.replicas):
        raise InputError(
            f"sharing {answers.strategy} with {answers.replicas or 'no'} shares",
            expected=f"shares of a GPU for {' and '.join(SHARED)}, and for these alone",
            fix="--sharing time-slicing --replicas 4",
        )
    if (answers.strategy == "mig") != bool(answers.mig):
        raise InputError(
            f"sharing {answers.strategy} with {len(answers.mig) or 'no'} MIG profiles",
            expected="profiles for mig, and for it alone",
            fix="--sharing mig --mig 3g.40gb=2",
        )
    if mode.in_cluster and not answers.server_version:
        raise InputError(
            f"{answers.strategy} without Kubernetes", expected="the API server's version", fix="--kubernetes 1.34"
        )
    if answers.server_version and not re.fullmatch(r"1\.\d+", answers.server_version):
        raise InputError(f"Kubernetes version {answers.server_version!r}", expected="MAJOR.MINOR such as 1.34")


def spec_data(answers: Answers) -> dict[str, Any]:
    """The answers with the keys of gpunode.yml."""
    data: dict[str, Any] = {"driver": {"branch": "auto"}, "cuda": {"versions": list(answers.cuda)}}
    if answers.engine == "auto":
        data["runtimes"] = {name: {"manage": "auto"} for name in _INSTALLABLE}
    else:
        manage = "install" if answers.engine in _INSTALLABLE else "configure"
        data["runtimes"] = {answers.engine: {"manage": manage}}
    data["reboot"] = answers.reboot
    data["sharing"] = {"strategy": answers.strategy}
    if answers.replicas:
        data["sharing"]["replicas"] = answers.replicas
    if answers.mig:
        data["sharing"]["mig"] = {"profiles": dict(answers.mig)}
    if answers.server_version:
        data["kubernetes"] = {"server_version": answers.server_version}
    return data


def spec_text(answers: Answers, found: Sequence[str] = ()) -> str:
    """A gpunode.yml with what each key means above it, and `found`, lines on the nodes as they are, at the top."""
    head = ["Desired state of the nodes. Omitted keys use their defaults; gpunode explain shows all of them."]
    head += ["", "Found before this file was written:", *(f"  {line}" for line in found)] if found else []
    lines = [f"# {line}".rstrip() for line in head]
    return "\n".join([*lines, *_mapping(Spec, spec_data(answers), "")]) + "\n"


def _mapping(kind: type, data: Mapping[str, Any], indent: str) -> Iterator[str]:
    hints = typing.get_type_hints(kind)
    docs = {f.name: f.metadata["doc"] for f in dataclasses.fields(kind)}
    for key, value in data.items():
        if not indent:
            yield ""
        yield from textwrap.wrap(docs[key], _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        if dataclasses.is_dataclass(hints[key]):
            yield f"{indent}{key}:"
            yield from _mapping(typing.cast(type, hints[key]), value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {_flow(value)}"


def _flow(value: Any) -> str:
    """A value on one line; within brackets, so that YAML adds no end mark to a lone word."""
    return str(yaml.safe_dump([value], default_flow_style=True, width=1 << 20)).strip()[1:-1]


def inventory_text(hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """Hosts with their Ansible variables → an inventory with one group."""
    data = {"all": {"children": {_GROUP: {"hosts": {name: dict(v) or None for name, v in hosts.items()}}}}}
    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True).replace(": null\n", ":\n")
    return (
        "# The nodes, as an Ansible inventory. Nodes that are to be otherwise are a group of their own,\n"
        f"# with a variable gpunode_spec that has the keys of gpunode.yml and is merged over it.\n---\n{body}"
    )
