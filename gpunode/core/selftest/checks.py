"""The checks of a selftest: one row each, with what it compares, what it needs, and the function that judges it.

A function gives back what was compared and the differences that it found; where a comparison makes no sense on this
machine it raises NotPossible with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from gpunode.core.checks.gpus import SLOWDOWNS
from gpunode.core.errors import UNEXPECTED, GpunodeError
from gpunode.core.facts import parse_probe, stable_facts
from gpunode.core.facts.cdi import read_spec
from gpunode.core.facts.text import NOT_UNDERSTOOD
from gpunode.core.knowledge import GpuModel, Knowledge
from gpunode.core.late import dataclass, regex, replace
from gpunode.core.model import NodeFacts
from gpunode.core.numbers import version_tuple
from gpunode.core.printable import counted
from gpunode.core.selftest import readings
from gpunode.core.selftest.readings import SourceReading
from gpunode.core.selftest.record import Capture, Result, SelftestRecord
from gpunode.core.sharing.mig import Product, product_of
from gpunode.core.solve import parse_driver, request_of, solve
from gpunode.core.spec import Spec


class NotPossible(Exception):
    """Why a check says nothing on this machine."""


@dataclass(frozen=True, kw_only=True)
class SourceFinding:
    """What a check compared, and the differences."""

    message: str
    differences: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class RecordEvidence:
    """One record with all that the checks read out of it, each thing once."""

    record: SelftestRecord
    knowledge: Knowledge
    products: tuple[Product, ...]

    @cached_property
    def facts(self) -> NodeFacts:
        return parse_probe(self.record.text("probe.txt"))

    @cached_property
    def smi(self) -> SourceReading:
        return readings.read_smi(self.record.text("nvidia-smi.xml"))

    @cached_property
    def nvml(self) -> SourceReading:
        return readings.read_nvml(self.record.data("nvml.json"))

    @cached_property
    def models(self) -> Mapping[str, GpuModel]:
        """Slot → what the knowledge has of the GPU there."""
        found = {gpu.slot: self.knowledge.gpu(gpu.id) for gpu in self.facts.gpus}
        return {slot: model for slot, model in found.items() if model}

    @property
    def virtual(self) -> frozenset[str]:
        """Slots of GPUs that a hypervisor shares out (vGPU)."""
        stated = {slot: gpu.get("virtualization", "") for slot, gpu in self.smi.gpus.items()}
        return frozenset(slot for slot, mode in stated.items() if mode.upper() == "VGPU")

    @cached_property
    def xids(self) -> tuple[int, ...]:
        """Codes of the kernel log since boot, without those that applications cause."""
        found = re.findall(r"NVRM: Xid \([^)]*\): (\d+)", self.record.text("dmesg.txt"))
        return tuple(code for code in map(int, found) if code not in self.knowledge.application_xids)


@dataclass(frozen=True)
class SourceCheck:
    """A row of the table: what it compares, the captures that it needs, and who judges them."""

    id: str
    compares: str
    needs: tuple[str, ...]
    judge: Callable[[RecordEvidence], SourceFinding]


def judge(evidence: RecordEvidence) -> tuple[Result, ...]:
    """Every check of the table on one record, in the table's order."""
    return tuple(_result(check, evidence) for check in CHECKS)


def _result(check: SourceCheck, evidence: RecordEvidence) -> Result:
    row = partial(Result, id=check.id)
    for need in check.needs:
        capture = evidence.record.captures.get(need, Capture(error="it was not asked for"))
        if not capture.text:
            return row(status="not possible", message=f"no {need}: {capture.error or 'it is empty'}")
    try:
        found = check.judge(evidence)
    except NotPossible as why:
        return row(status="not possible", message=str(why))
    except Exception as error:  # what no check foresaw is what a selftest is to find, and others have to go on
        what = error.what if isinstance(error, GpunodeError) else f"{type(error).__name__}: {error}"
        return row(status="failed", message=f"cannot be judged: {what}")
    if found.differences:
        shown = tuple(found.differences)
        return row(status="failed", message=f"{found.message}: {counted(len(shown), 'difference')}", details=shown)
    return row(status="passed", message=found.message)


# ---------------------------------------------------------------- probe and driver

SHELLS = ("dash", "bash", "busybox")


def _shells(evidence: RecordEvidence) -> SourceFinding:
    """Facts under each shell against those of /bin/sh, as far as they rest on the machine alone."""
    asked = {shell: evidence.record.captures.get(f"probe-{shell}.txt", Capture(error="not there")) for shell in SHELLS}
    texts = {shell: one for shell, one in asked.items() if one.text or one.stopped}
    if not texts:
        raise NotPossible(f"none of {', '.join(SHELLS)} is on this machine")
    wanted, differences = stable_facts(evidence.facts), []
    for shell, one in texts.items():
        try:
            found = stable_facts(parse_probe(one.text))
        except GpunodeError as error:
            differences.append(f"{shell}: {error.what}")
            continue
        differences += [f"{shell}: {name} differs" for name in wanted if found.get(name) != wanted[name]]
    return SourceFinding(message=f"the same facts under {', '.join(texts)}", differences=differences)


def _readable(evidence: RecordEvidence) -> SourceFinding:
    lost = [note for note in evidence.facts.notes if NOT_UNDERSTOOD in note]
    lost += [*evidence.facts.malformed, *map(str, evidence.facts.invalid)]
    return SourceFinding(message="every line of the probe was understood", differences=lost)


def _driver(evidence: RecordEvidence) -> SourceFinding:
    facts, trouble = evidence.facts, []
    on_pci = [gpu for gpu in facts.gpus if gpu.driver != "vfio-pci"]
    if not on_pci:
        raise NotPossible("no NVIDIA GPU on PCI, or all are passed through to guests")
    if not facts.driver.loaded:
        trouble.append("no NVIDIA kernel module is loaded")
    if facts.driver.userspace and facts.driver.loaded and facts.driver.userspace != facts.driver.loaded:
        trouble.append(f"kernel module {facts.driver.loaded}, libraries {facts.driver.userspace}")
    if facts.driver.smi:
        trouble.append(f"nvidia-smi: {facts.driver.smi}")
    return SourceFinding(message=f"driver {facts.driver.loaded or 'none'} answers", differences=trouble)


def _in_time(evidence: RecordEvidence) -> SourceFinding:
    late = [f"{name}: {one.error}" for name, one in evidence.record.captures.items() if one.stopped]
    return SourceFinding(
        message=f"{len(evidence.record.captures)} captures ended within their limits", differences=late
    )


# ---------------------------------------------------------------- facts, field by field


_PROBE, _SMI, _NVML = "probe.txt", "nvidia-smi.xml", "nvml.json"
# source → its name, the capture that has it, and how that is read
_SOURCES: Mapping[str, tuple[str, str, Callable[[RecordEvidence], SourceReading]]] = {
    "facts": ("facts", _PROBE, lambda evidence: readings.read_facts(evidence.facts)),
    "smi": ("nvidia-smi -q -x", _SMI, lambda evidence: evidence.smi),
    "nvml": ("NVML", _NVML, lambda evidence: evidence.nvml),
    "lspci": ("lspci -nn", "lspci.txt", lambda evidence: readings.read_lspci(evidence.record.text("lspci.txt"))),
    "sysfs": ("sysfs", "sysfs.json", lambda evidence: readings.read_sysfs(evidence.record.text("sysfs.json"))),
    "proc": ("/proc/driver/nvidia", "proc.txt", lambda evidence: readings.read_proc(evidence.record.text("proc.txt"))),
}


def _pair(one: str, other: str) -> SourceCheck:
    """The check of two sources, field by field."""
    (name, capture, _), (other_name, other_capture, _) = _SOURCES[one], _SOURCES[other]
    needs = tuple(dict.fromkeys((_PROBE, capture, other_capture)))
    return SourceCheck(f"{one}.{other}", f"{name} with {other_name}", needs, partial(_compared, one, other))


def _compared(one: str, other: str, evidence: RecordEvidence) -> SourceFinding:
    first, second = (read(evidence) for _, _, read in (_SOURCES[one], _SOURCES[other]))
    passed_through = [gpu.slot for gpu in evidence.facts.gpus if gpu.driver == "vfio-pci"]
    absent = passed_through if {one, other} & {"smi", "nvml", "proc"} else ()
    number, differences = readings.compare(first, second, absent=absent)
    if not number and not differences:
        raise NotPossible(f"{first.source} and {second.source} have no field in common")
    return SourceFinding(
        message=f"{first.source} and {second.source}: {number} fields compared", differences=differences
    )


def _virtual(evidence: RecordEvidence) -> SourceFinding:
    """Whether gpunode knows a virtual GPU as one: its driver comes from the vendor of the hypervisor."""
    if not evidence.virtual:
        raise NotPossible("no virtual GPU here")
    known = {gpu.slot for gpu in evidence.facts.gpus if gpu.virtual_function}
    missed = [
        f"{slot}: nvidia-smi says VGPU, gpunode takes it for a whole GPU" for slot in sorted(evidence.virtual - known)
    ]
    return SourceFinding(message="virtual GPUs are known as such", differences=missed)


def _nvlink(evidence: RecordEvidence) -> SourceFinding:
    indexes = {gpu.slot: gpu.index for gpu in evidence.facts.nvml}
    links = {
        indexes[slot]: gpu["nvlink"] for slot, gpu in evidence.nvml.gpus.items() if "nvlink" in gpu and slot in indexes
    }
    if not any("1" in states for states in links.values()) or len(links) < 2:
        raise NotPossible("no two GPUs with active NVLinks")
    down = {
        f"GPU {index} link {number}"
        for index, states in links.items()
        for number, state in enumerate(states)
        if state == "0" and "1" in states
    }
    models = {gpu.index: gpu.name for gpu in evidence.facts.nvml}
    joined = {models[index] for index, states in links.items() if "1" in states}
    down |= {f"GPU {n}: all links" for n, states in links.items() if "1" not in states and models[n] in joined}
    reported = set(evidence.facts.nvlink_inactive)
    differences = [f"{link}: NVML says down, gpunode does not" for link in sorted(down - reported)]
    differences += [f"{link}: gpunode says down, NVML does not" for link in sorted(reported - down)]
    return SourceFinding(message=f"{sum(map(len, links.values()))} NVLinks compared", differences=differences)


# ---------------------------------------------------------------- knowledge against the device


def _known(evidence: RecordEvidence) -> SourceFinding:
    gpus = _gpus(evidence)
    unknown = [f"{gpu.slot} {gpu.id}: not in gpus.toml" for gpu in gpus if not evidence.knowledge.gpu(gpu.id)]
    names = sorted({model.name for model in evidence.models.values()})
    return SourceFinding(message=f"PCI ids known: {', '.join(names) or 'none'}", differences=unknown)


def _gpus(evidence: RecordEvidence) -> tuple[Any, ...]:
    if not evidence.facts.gpus:
        raise NotPossible("no NVIDIA GPU on PCI")
    return evidence.facts.gpus


_BRANDS = (
    (regex("geforce", re.I), ("geforce",)),
    (regex("titan", re.I), ("geforce", "workstation")),
    (regex("quadro|rtx", re.I), ("workstation", "datacenter")),
    (regex("tesla|nvidia", re.I), ("datacenter", "workstation", "mining", "grace-soc")),
)


def _class(evidence: RecordEvidence) -> SourceFinding:
    """The kind that the knowledge has for the model against the brand that the driver says."""
    compared, differences = 0, []
    for slot, gpu, model in _known_gpus(evidence):
        kinds = next((kinds for brand, kinds in _BRANDS if brand.search(gpu.get("brand", ""))), ())
        if slot in evidence.virtual:  # its brand is that of its licence
            continue
        compared += bool(kinds)
        if kinds and model.kind not in (*kinds, "unnamed"):
            differences.append(f"{slot} {model.id}: {model.kind} in the knowledge, brand {gpu['brand']}")
    return _found(compared, "brand", differences)


def _known_gpus(evidence: RecordEvidence) -> Iterator[tuple[str, Mapping[str, str], GpuModel]]:
    """(slot, what nvidia-smi says, what the knowledge has) of each GPU that both have."""
    for slot, gpu in evidence.smi.gpus.items():
        if slot in evidence.models:
            yield slot, gpu, evidence.models[slot]


def _found(compared: int, what: str, differences: Sequence[str]) -> SourceFinding:
    if not compared and not differences:
        raise NotPossible(f"the driver does not say the {what} of a GPU that is known")
    return SourceFinding(message=f"{what} of {compared} GPUs as in the knowledge", differences=differences)


def _architecture(evidence: RecordEvidence) -> SourceFinding:
    rows = [(slot, gpu["architecture"], model) for slot, gpu, model in _known_gpus(evidence) if "architecture" in gpu]
    differences = [
        f"{slot} {model.id}: {model.arch} in the knowledge, the driver says {stated}"
        for slot, stated, model in rows
        if _generation(stated) != _generation(model.arch)
    ]
    return _found(len(rows), "architecture", differences)


def _generation(name: str) -> str:
    return name.lower().removesuffix(" lovelace")


def _capability(evidence: RecordEvidence) -> SourceFinding:
    stated = {
        slot: gpu["compute_capability"] for slot, gpu in evidence.nvml.gpus.items() if "compute_capability" in gpu
    }
    rows = [(slot, stated[slot], model) for slot, model in evidence.models.items() if slot in stated]
    differences = [
        f"{slot} {model.id}: {model.compute_capability} in the knowledge, NVML says {reported}"
        for slot, reported, model in rows
        if model.compute_capability and reported != model.compute_capability
    ]
    return _found(len(rows), "compute capability", differences)


def _mig_capability(evidence: RecordEvidence) -> SourceFinding:
    differences, compared, hidden = [], 0, 0
    for slot, gpu, model in _known_gpus(evidence):
        if slot in evidence.virtual or model.mig == "unknown":
            continue
        compared += 1
        capable = "mig_current" in gpu
        if not capable and any(model.id in product.display for product in evidence.products):
            hidden += 1  # until its display mode is compute, it says N/A as a GPU without MIG does
        elif capable != bool(model.mig):
            has = "has MIG" if capable else "has no MIG"
            differences.append(f"{slot} {model.id}: {'MIG' if model.mig else 'no MIG'} in the knowledge, the GPU {has}")
    if hidden and hidden == compared:
        raise NotPossible("the GPU says nothing of MIG before its display mode is compute")
    return _found(compared - hidden, "MIG capability", differences)


def _mig_profiles(evidence: RecordEvidence) -> SourceFinding:
    listed = readings.read_profiles(evidence.record.text("mig-profiles.txt"))
    if not listed:
        raise NotPossible("nvidia-smi mig -lgip lists no profile: no GPU has MIG, or has it enabled")
    slots = {gpu.index: gpu.slot for gpu in evidence.facts.nvml}
    ids = {gpu.slot: gpu.id for gpu in evidence.facts.gpus}
    memory = {gpu.slot: gpu.memory_mib for gpu in evidence.facts.nvml}
    branch = (version_tuple(evidence.facts.driver.loaded) or (0,))[0]
    differences: list[str] = []
    for index in sorted({row.gpu for row in listed}):
        slot = slots.get(index, "")
        product = product_of(ids.get(slot, ""), evidence.products, evidence.knowledge, memory_mib=memory.get(slot))
        rows = {row.name: row for row in listed if row.gpu == index}
        known = {one.name: one for one in product.profiles if one.since <= branch}
        where = f"GPU {index} ({product.name})"
        differences += [f"{where} {name}: the GPU has it, the knowledge does not" for name in rows if name not in known]
        differences += [
            f"{where} {name}: in the knowledge, the GPU does not list it" for name in known if name not in rows
        ]
        for name in {*rows} & {*known}:
            row, one = rows[name], known[name]
            if one.id >= 0 and row.id != one.id:
                differences.append(f"{where} {name}: profile ID {one.id} in the knowledge, {row.id} on the GPU")
            if row.most != one.most:
                differences.append(f"{where} {name}: at most {one.most} in the knowledge, {row.most} on the GPU")
            published = one.gib is not None  # else a lower bound is known, and the name says the most
            least, most = (0.94 * one.usable_gib, 1.06 * one.usable_gib) if published else (one.usable_gib, one.gb)
            if not least <= row.gib <= most:
                differences.append(f"{where} {name}: {one.usable_gib} GiB in the knowledge, {row.gib} GiB on the GPU")
    return SourceFinding(message=f"{len(listed)} MIG profiles compared", differences=differences)


def _open_module(evidence: RecordEvidence) -> SourceFinding:
    flavour = evidence.facts.driver.loaded_flavour
    if not flavour or not evidence.models:
        raise NotPossible("no NVIDIA kernel module is loaded, or no GPU is known")
    refused = {"open": "no", "proprietary": "only"}[flavour]
    rows = [
        (gpu.slot, evidence.models[gpu.slot])
        for gpu in evidence.facts.gpus
        if gpu.slot in evidence.models and gpu.driver == "nvidia"
    ]
    driven = set(evidence.smi.gpus)
    differences = [
        f"{slot} {model.id}: driven by the {flavour} modules, which the knowledge rules out"
        for slot, model in rows
        if model.open == refused and slot in driven
    ]
    return _found(len(rows), f"module flavour ({flavour})", differences)


def _branch(evidence: RecordEvidence) -> SourceFinding:
    """A driver that runs a GPU is within the range that the knowledge has for it, and its branch is known."""
    loaded = evidence.facts.driver.loaded
    if not loaded:
        raise NotPossible("no NVIDIA kernel module is loaded")
    version = version_tuple(loaded)
    differences = [] if version[0] in evidence.knowledge.branches else [f"branch {version[0]}: not in drivers.toml"]
    rows = [(slot, model) for slot, _, model in _known_gpus(evidence)]
    for slot, model in rows:
        arch = evidence.knowledge.architectures[model.arch]
        first = version_tuple(model.first_release) or (arch.first_branch,)
        if version[: len(first)] < first:
            differences.append(
                f"{slot} {model.id}: {loaded} runs it, first driver in the knowledge {'.'.join(map(str, first))}"
            )
        if arch.last_branch and version[0] > arch.last_branch:
            differences.append(f"{slot} {model.id}: {loaded} runs it, last branch in the knowledge {arch.last_branch}")
    return SourceFinding(message=f"driver {loaded} is in the range of {len(rows)} GPUs", differences=differences)


def _solver(evidence: RecordEvidence) -> SourceFinding:
    """The solver, asked for the branch and flavour that run, has no objection."""
    driver = evidence.facts.driver
    if not driver.loaded or not evidence.facts.gpus:
        raise NotPossible("no NVIDIA kernel module is loaded, or no GPU on PCI")
    if evidence.virtual:
        raise NotPossible("a virtual GPU has its driver from the hypervisor's vendor")
    if evidence.facts.container:
        raise NotPossible("a container has its driver from its host")
    asked = f"{version_tuple(driver.loaded)[0]}" + (f"-{driver.loaded_flavour}" if driver.loaded_flavour else "")
    spec = Spec(driver=parse_driver(asked))
    # who brought the driver, and what its kernels lack for the next one, is no fault of what is known of it
    request = replace(request_of(evidence.facts, spec), runfile="", elsewhere="", kernels=())
    solution = solve(request, evidence.knowledge)
    problems = [problem.what for problem in solution.problems]
    return SourceFinding(
        message=f"the solver accepts driver {asked} on {evidence.facts.distro.key}", differences=problems
    )


# ---------------------------------------------------------------- commands

COMMANDS: Mapping[str, tuple[int, ...]] = {  # exit codes that a machine in any state may have
    "detect": (0,),
    "plan": (0, 3, 5),
    "verify": (0, 1, 3, 5),
    "doctor": (0, 1),
    "report": (0,),
}
_BUG = regex(r"Traceback \(most recent call last\)|\b" + UNEXPECTED + r" [A-Z]\w+(?:Error|Exception)\b")


def _command(name: str, evidence: RecordEvidence) -> SourceFinding:
    capture = evidence.record.captures[f"{name}.json"]
    trouble = [line.strip()[:200] for line in capture.text.splitlines() if _BUG.search(line)]
    if capture.exit not in COMMANDS[name]:
        stated = evidence.record.text(f"{name}.json").strip().splitlines()
        trouble.append(f"exit code {capture.exit}: {stated[-1][:200] if stated else ''}")
    elif not trouble and evidence.record.data(f"{name}.json") is None:
        trouble.append("it printed no JSON")
    return SourceFinding(
        message=f"gpunode {name}: exit code {capture.exit} in {capture.seconds:.1f} s", differences=trouble
    )


def _any(name: str, *values: str) -> Callable[[RecordEvidence], bool]:
    return lambda evidence: any(gpu.get(name, "") in values for gpu in evidence.nvml.gpus.values())


def _unjoined(evidence: RecordEvidence) -> bool:
    states = [(gpu.get("fabric_state", ""), gpu.get("fabric_status", "Success")) for gpu in evidence.nvml.gpus.values()]
    return any(state in ("Not Started", "In Progress") or (state and status != "Success") for state, status in states)


# check of `gpunode verify` → whether NVML, or the kernel log, says the same
_SIGNS: Mapping[str, Callable[[RecordEvidence], bool]] = {
    "gpu.ecc": lambda evidence: any(gpu.get("ecc_uncorrected", "0") != "0" for gpu in evidence.nvml.gpus.values()),
    "gpu.remap-pending": _any("remap_pending", "Yes"),
    "gpu.remap-failure": _any("remap_failure", "Yes"),
    "gpu.retirement-pending": _any("retired_pending", "Yes"),
    "gpu.slowdown": lambda evidence: any(
        int(gpu.get("event_reasons", "0"), 16) & sum(SLOWDOWNS) for gpu in evidence.nvml.gpus.values()
    ),
    "gpu.count": lambda evidence: len(evidence.nvml.gpus) != len(evidence.facts.gpus),
    "gpu.xid": lambda evidence: bool(evidence.xids),
    "driver.loaded": lambda evidence: not evidence.nvml.machine.get("driver"),
    "driver.versions-match": lambda evidence: not evidence.nvml.machine.get("driver"),
    "gpu.fault": lambda evidence: any(gpu.get("fault") for gpu in evidence.nvml.gpus.values()),
    "fabric.state": _unjoined,
}


def _alarms(evidence: RecordEvidence) -> SourceFinding:
    """gpunode's health checks that fail are those for which NVML has a sign, and no others."""
    hosts = (evidence.record.data("verify.json") or {}).get("hosts") or [{}]
    status = {check["id"]: check for check in hosts[0].get("checks", ())}
    rows = [(name, sign(evidence)) for name, sign in _SIGNS.items() if name in status]
    if not rows:
        raise NotPossible("verify made no check that NVML has a sign for")
    differences = []
    for name, sick in rows:
        failed = status[name]["status"] == "failed"
        if failed and not sick:
            differences.append(f"{name}: verify fails ({status[name]['message']}), NVML says the GPUs are healthy")
        if sick and not failed:
            differences.append(f"{name}: NVML says the GPUs are not healthy, verify does not")
    return SourceFinding(message=f"{len(rows)} health checks agree with NVML", differences=differences)


_HARDWARE = ("kernel", "driver", "fabric")  # layers in which a machine that NVML calls healthy has no fault


def _findings(evidence: RecordEvidence) -> SourceFinding:
    """The doctor finds no root cause in the driver's layers where NVML says that all is well."""
    hosts = (evidence.record.data("doctor.json") or {}).get("hosts") or [{}]
    if any(sign(evidence) for sign in _SIGNS.values()):
        raise NotPossible("NVML or the kernel log says that a GPU is not healthy")
    found = hosts[0].get("findings", ())
    wrong = [
        f"{one['id']}: {(one['evidence'] or [''])[0][:160]}"
        for one in found
        if one["root"] and one["severity"] == "error" and one["layer"] in _HARDWARE
    ]
    return SourceFinding(
        message=f"{len(found)} findings, none of them a false alarm about the driver", differences=wrong
    )


def _cdi(evidence: RecordEvidence) -> SourceFinding:
    """The CDI specification that nvidia-ctk makes today is one that gpunode reads, with every GPU in it."""
    spec = read_spec("nvidia.yaml", evidence.record.text("cdi.yaml").encode())
    wanted = {
        gpu["uuid"] for gpu in evidence.smi.gpus.values() if "uuid" in gpu and gpu.get("mig_current") != "Enabled"
    }
    named = {name for name in spec.devices if name.startswith("GPU-")}
    differences = [f"{uuid}: not in the specification" for uuid in sorted(wanted - named)] if named else []
    if not named and len([name for name in spec.devices if name.isdigit()]) < len(wanted):
        differences.append(f"{len(wanted)} GPUs, devices {', '.join(spec.devices)}")
    if spec.driver and spec.driver != evidence.facts.driver.loaded:
        differences.append(f"made for driver {spec.driver}, loaded is {evidence.facts.driver.loaded}")
    return SourceFinding(message=f"nvidia-ctk's specification has {len(spec.devices)} devices", differences=differences)


# ---------------------------------------------------------------- the table

CHECKS: tuple[SourceCheck, ...] = (
    SourceCheck("probe.shells", "the probe under dash, bash and busybox", (_PROBE,), _shells),
    SourceCheck("probe.readable", "every line of the probe with the form that is known", (_PROBE,), _readable),
    SourceCheck("driver.works", "loaded kernel module, libraries and nvidia-smi", (_PROBE,), _driver),
    SourceCheck("captures.in-time", "each command with its time limit", (), _in_time),
    _pair("facts", "smi"),
    _pair("facts", "nvml"),
    _pair("smi", "nvml"),
    _pair("facts", "lspci"),
    _pair("facts", "sysfs"),
    _pair("smi", "sysfs"),
    _pair("facts", "proc"),
    _pair("smi", "proc"),
    SourceCheck("facts.virtual", "virtual GPUs in the facts with nvidia-smi", (_PROBE, _SMI), _virtual),
    SourceCheck("facts.nvlink", "NVLinks that are down with NVML", (_PROBE, _NVML), _nvlink),
    SourceCheck("knowledge.pci-id", "PCI ids with the table of GPUs", (_PROBE,), _known),
    SourceCheck("knowledge.class", "kind of GPU with the driver's brand", (_PROBE, _SMI), _class),
    SourceCheck("knowledge.architecture", "architecture with the driver's", (_PROBE, _SMI), _architecture),
    SourceCheck("knowledge.compute-capability", "compute capability with NVML's", (_PROBE, _NVML), _capability),
    SourceCheck("knowledge.mig-capability", "whether the model has MIG with the GPU", (_PROBE, _SMI), _mig_capability),
    SourceCheck(
        "knowledge.mig-profiles", "MIG profiles with nvidia-smi mig -lgip", (_PROBE, "mig-profiles.txt"), _mig_profiles
    ),
    SourceCheck(
        "knowledge.open-module", "whether open modules may drive it with those that do", (_PROBE, _SMI), _open_module
    ),
    SourceCheck("knowledge.branch", "branches of the model with the driver that runs", (_PROBE, _SMI), _branch),
    SourceCheck("solver.accepts", "the solver with the driver that runs", (_PROBE, _SMI), _solver),
    *(
        SourceCheck(
            f"command.{name}",
            f"gpunode {name}: exit code, no traceback, JSON",
            (f"{name}.json",),
            partial(_command, name),
        )
        for name in COMMANDS
    ),
    SourceCheck("verify.alarms", "health checks of verify with NVML", (_PROBE, _NVML, "verify.json"), _alarms),
    SourceCheck("doctor.alarms", "findings of the doctor with NVML", (_PROBE, _NVML, "doctor.json"), _findings),
    SourceCheck("smi.cdi", "nvidia-ctk's CDI specification with the GPUs", (_PROBE, _SMI, "cdi.yaml"), _cdi),
)
