"""Which settings of the host are made (`tuning`), from what gpunode.yml asks and what the node can: a TuningChoice.

What each sets, with the evidence for it, is in knowledge/tuning.toml.  The kinds are modules of their own:
kernel_argument, host_settings, memlock, sysctl, gpudirect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.engines import ROWS
from gpunode.core.facts.pcie import PcieTree, redirects
from gpunode.core.items.gpudirect import dmabuf_lacks, dmabuf_unread, impossible
from gpunode.core.items.kernel_argument import given
from gpunode.core.knowledge import Knowledge
from gpunode.core.late import dataclass, regex
from gpunode.core.model import NodeFacts, Problem, Reason, TuningChoice
from gpunode.core.spec.tuning import TuningSpec

_GRACE = regex(r"\bG[HB]\d")  # GH200, GB200, GB300: their CPU is Grace


@dataclass(frozen=True, kw_only=True)
class TuningSetting:
    """A setting: `set` by architecture (`all`: of every one), why it helps and what it can break."""

    key: str
    set: Mapping[str, str]
    kind: str  # argument (of the kernel's command line), sysctl, acs, governor, memlock, module
    evidence: str  # measured, vendor, general
    why: str
    warning: str
    source: str
    only: str = ""  # grace: on NVIDIA's CPUs alone

    def words(self, arch: str) -> tuple[str, ...]:
        """What is set on that architecture; () where it has none."""
        return tuple(self.set.get(arch, self.set.get("all", "")).split())


def parse_tuning(table: Mapping[str, Any]) -> tuple[TuningSetting, ...]:
    """The parsed file → rows; short source keys become the text they stand for."""
    return tuple(TuningSetting(**{**row, "source": table["sources"][row["source"]]}) for row in table["settings"])


def choose_tuning(
    facts: NodeFacts, spec: TuningSpec, rows: Sequence[TuningSetting], knowledge: Knowledge
) -> TuningChoice:
    """What is set, with reasons and warnings; problems name what this node cannot."""
    asked = [row for row in rows if row.key in spec.given]
    problems = [problem for row in asked for problem in _impossible(row, facts, knowledge)]
    words = {row.kind: row.words(facts.arch) for row in asked}
    pairs = (word.partition("=") for row in asked if row.kind == "sysctl" for word in row.words(facts.arch))
    return TuningChoice(
        arguments=tuple(word for row in asked if row.kind == "argument" for word in row.words(facts.arch)),
        sysctl={**{key: value for key, _, value in pairs}, **spec.sysctl},
        acs=tuple(sorted(_bridges(facts))) if "acs" in words else (),
        governor="".join(words.get("governor", ())),
        memlock=tuple(_units(facts)) if "memlock" in words else (),
        modules=tuple(word for row in asked if row.kind == "module" for word in row.words(facts.arch)),
        reasons=tuple(_reasons(asked, facts)),
        problems=tuple(problems),
    )


def _reasons(asked: Sequence[TuningSetting], facts: NodeFacts) -> Iterator[Reason]:
    for row in asked:
        yield Reason(what=f"tuning.{row.key}", why=f"{row.why} (evidence: {row.evidence})", source=row.source)
        yield Reason(what=f"tuning.{row.key}", why=row.warning, source=row.source, level="warning")
        if row.key == "peermem" and not dmabuf_lacks(facts) and not dmabuf_unread(facts):
            why = "DMA-BUF works here already: only programs that cannot use it need the module"
            yield Reason(what="tuning.peermem", why=why, source=row.source, level="warning")


def _bridges(facts: NodeFacts) -> Iterator[str]:
    """All with ACS between two devices: also those that do not redirect, as gpunode has seen to it already."""
    tree = PcieTree.of(facts)
    yield from (slot for slot in tree.between(facts) if tree.links[slot].acs.startswith("0x"))


def _units(facts: NodeFacts) -> Iterator[str]:
    """Units of the container engines and of the kubelet that run here."""
    names = [row.unit for row in ROWS.values() if row.daemon]
    names += [one.unit for one in facts.runtimes if one.unit]
    for name in dict.fromkeys([*names, "kubelet.service"]):
        service = facts.service(name)
        if service and service.active == "active":
            yield name if name.endswith(".service") else f"{name}.service"


def _impossible(row: TuningSetting, facts: NodeFacts, knowledge: Knowledge) -> Iterator[Problem]:
    models = [knowledge.gpu(gpu.id) for gpu in facts.gpus]
    if row.only == "grace" and not (facts.arch == "aarch64" and any(one and _GRACE.search(one.name) for one in models)):
        yield _refused(row, "it is for machines with NVIDIA's Grace CPU, and this is none")
    elif row.kind == "argument":
        unset = [word for word in row.words(facts.arch) if not given(word, facts.tuning.arguments)]
        if not row.words(facts.arch):
            yield _refused(row, f"it is not known for {facts.arch}")
        elif unset and not facts.tuning.loader:
            yield Problem(
                what=f"tuning.{row.key}: neither update-grub with /etc/default/grub.d nor grubby is on this node",
                fix=f"put {unset[0]} on the kernel's command line by hand; plan and verify see it once it is in force",
            )
    elif row.kind == "module":
        yield from (problem for word in row.words(facts.arch) for problem in impossible(word, facts))
    elif row.kind == "acs":
        yield from _acs(row, facts)
    elif row.kind == "governor" and not facts.tuning.governors and "tuning" not in facts.unread:
        yield _refused(row, "the CPUs of this node have no frequency governor")


def _acs(row: TuningSetting, facts: NodeFacts) -> Iterator[Problem]:
    tree = PcieTree.of(facts)
    words = {slot: tree.links[slot].acs for slot in sorted(tree.between(facts))}
    unread, bad = [slot for slot in words if not words[slot]], [slot for slot in words if redirects(words[slot])]
    if any(gpu.driver == "vfio-pci" for gpu in facts.gpus):
        yield _refused(row, "GPUs are given to virtual machines (vfio-pci), and ACS keeps these apart")
    elif not tree.bare:
        yield _refused(row, "this is a virtual machine: its bridges are the hypervisor's")
    elif unread:
        yield _refused(row, f"the ACS of {', '.join(unread)} was not read (probe as root)")
    elif bad and facts.tuning.lockdown not in ("", "none"):
        fix = f"put 'pci=disable_acs_redir={';'.join(bad)}' on the kernel's command line, or disable Secure Boot"
        yield _refused(row, f"the kernel is locked down (Secure Boot), and keeps the ACS of {', '.join(bad)}", fix)


def _refused(row: TuningSetting, what: str, fix: str = "") -> Problem:
    fix = fix or f"leave tuning.{row.key} out for this node (inventory group)"
    return Problem(what=f"tuning.{row.key}: {what}", fix=fix)
