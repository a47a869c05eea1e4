"""The parsers of what comes from nodes, logs, clusters, repositories and people, each with texts to begin from.

A target takes any text.  It returns, or raises GpunodeError: a sentence that a person can act on.  Anything else is a
bug.  `inputs` is how many texts `make test-all` tries.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from edit_cases import case as case_of
from edit_cases import cases
from journal_text import packages, recall_text, state, undo_row, wrote

from gpunode.core.bundle import deb, manifest, rpm, upstream
from gpunode.core.checks.health import health_checks
from gpunode.core.doctor import diagnosis_data, diagnosis_text
from gpunode.core.doctor.read import diagnose_logs
from gpunode.core.doctor.state import split_sections, state_faults
from gpunode.core.edits import RuntimeRequest, configure_runtime, runtime_state, unconfigure_runtime
from gpunode.core.edits.kubernetes.kubelet import KubeletRequest, kubelet_target
from gpunode.core.edits.kubernetes.scheduler import SchedulerRequest, scheduler_target
from gpunode.core.edits.undo import undo_from_data
from gpunode.core.engines import ENGINES
from gpunode.core.errors import GpunodeError
from gpunode.core.facts import facts_from_data, facts_hash, facts_to_data, parse_probe
from gpunode.core.facts.cdi import read_spec
from gpunode.core.facts.redact import redact
from gpunode.core.items.activation import parse_activation
from gpunode.core.items.package import locked_by
from gpunode.core.items.smoke import parse_checks
from gpunode.core.mask import mask
from gpunode.core.model import Distribution, Repository
from gpunode.core.openpgp import binary, fingerprints
from gpunode.core.plan.lockfile import parse_lock
from gpunode.core.plan.question import read_answer
from gpunode.core.printable import printable
from gpunode.core.remote import parse_outcome
from gpunode.core.report.schema import seen_from
from gpunode.core.spec import Spec, parse_spec
from gpunode.core.spec.rollout import DrainSpec
from gpunode.core.undo.journal import parse_snapshot
from gpunode.core.undo.plan import plan_undo
from gpunode.core.undo.requests import compared, undo_requests
from gpunode.core.undo.scope import scope_of
from gpunode.edge.desired import DesiredState
from gpunode.edge.doctor import load_faults
from gpunode.edge.load import load_scheduler_rules
from gpunode.kube.core.checks.preflight import node_names, offers_gpus
from gpunode.kube.core.checks.ready import pod_trouble, readiness
from gpunode.kube.core.draining import daemon_sets_of, drain_plan
from gpunode.kube.core.owned import owner_words, parse_inventory, shown
from gpunode.kube.core.shape import checked_object
from gpunode.kube.core.usage import usage, usage_data, usage_text
from tools.pciids import parse_pci_ids

CASES = Path(__file__).parents[1] / "cases"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A parser.  `seeds` are texts it understands; those that are JSON are also changed as data."""

    what: str
    seeds: Callable[[], Sequence[str]]
    run: Callable[[str], object]
    inputs: int


# ---------------------------------------------------------------- mutations

HOSTILE = (
    "{{7*7}}",
    "{%x%}",
    "{#x#}",
    "\x1b]0;x\x07",
    "\x9b31m",
    "\x00",
    "\u202e",
    "\ud800",
    "\r\n",
    "\n\n",
    "\t",
    "\u2028",
    "\x85",
    "é",
    "٣",
    "²",
    "0" * 5000,
    "[" * 3000,
    '{"a":' * 3000,
    "-1",
    "1e999",
    "NaN",
    "null",
    "true",
    '""',
    "=",
    ": ",
    "- ",
    "|",
    "#: ",
    "| ",
    "gpunode\tstatus\tchanged",
    "a" * 100_000,
    "../../etc/passwd",
)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**70,
    1.5,
    "",
    "x",
    "{{7*7}}",
    "\x1b[31m\x00",
    [],
    [[]],
    {},
    {"": {}},
)


def mutants(seeds: Sequence[str], count: int, seed: int) -> Iterator[str]:
    """Some of the seeds themselves, then texts made of them: the same ones for the same `seed`."""
    chance = random.Random(seed)
    plain = chance.sample(seeds, min(len(seeds), count // 4))
    yield from plain
    data = [value for text in seeds if (value := _as_json(text)) is not None]
    for _ in range(count - len(plain)):
        if data and chance.random() < 0.6:
            yield json.dumps(_changed(chance.choice(data), chance))
            continue
        text = chance.choice(seeds)
        for _ in range(chance.choice((1, 1, 2, 5))):
            text = _cut(text, chance, seeds)
        yield text


def _cut(text: str, chance: random.Random, seeds: Sequence[str]) -> str:
    start = chance.randint(0, len(text))
    end = min(len(text), start + chance.choice((0, 0, 1, 5, 40, 400)))
    other = chance.choice(seeds)
    at = chance.randint(0, len(other))
    put = chance.choice(
        (
            chance.choice(HOSTILE),
            "".join(chr(chance.choice((chance.randrange(0x20), chance.randrange(0x110000)))) for _ in range(3)),
            other[at : at + chance.choice((1, 20, 200))],
            text[start:end] * 2,
            "",
        )
    )
    return text[:start] + put + text[end:]


def _as_json(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def _changed(value: Any, chance: random.Random) -> Any:
    """The same data with one of its values (or keys) another one."""
    if chance.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return chance.choice(ODD)
    if isinstance(value, list):
        at = chance.randrange(len(value))
        return [*value[:at], _changed(value[at], chance), *value[at + 1 :]]
    key = chance.choice([*value])
    if chance.random() < 0.1:
        return {name: one for name, one in value.items() if name != key}
    return {**value, key: _changed(value[key], chance)}


# ---------------------------------------------------------------- probes


def probes() -> list[str]:
    return [path.read_text() for path in sorted(CASES.glob("probes/*/probe.txt"))]


class Offline(DesiredState):
    """Fetches no keys of repositories."""

    def _key(self, repository: Repository, spec: Spec) -> bytes:
        return b"a key"


@cache
def desired() -> DesiredState:
    return Offline({}, to_run=False)


rules = cache(load_scheduler_rules)


def facts_and_plan(text: str) -> None:
    facts = parse_probe(text)
    facts_hash(facts)
    list(health_checks(facts, desired().knowledge))
    desired()._planned.clear()
    desired().plan("node1", facts)


def saved_facts() -> list[str]:
    return [json.dumps(facts_to_data(parse_probe(text), brief=True)) for text in probes()]


# ---------------------------------------------------------------- what node scripts print


def outcomes() -> list[str]:
    return [
        "log line\ngpunode\tchanged\tfile\t/etc/a\t\t\twrites /etc/a\n"
        "gpunode\tstatus\tchanged\ngpunode\tmessage\tdone\n",
        "gpunode\tstatus\tfailed\ngpunode\tmessage\tno room\ngpunode\tfix\tmake room\ngpunode\tstale\t/etc/a\n",
        "gpunode\tcheck\tdriver.smi|passed|1 GPU|\ngpunode\tcheck\tcuda.nvcc|failed|none|install\n"
        "gpunode\tstatus\tunchanged\n",
        "gpunode\treboot\tnew driver\ngpunode\tboot_id\t3d0ff2b1\ngpunode\tlocked\tapt (process 1)\ngpunode\tneed\tx\n",
    ]


def outcome(text: str) -> None:
    found = parse_outcome(text, 0)
    shown_ = (found.message, found.fix, found.log, *(one.text for one in found.changed), *found.notes, *found.stale)
    checks = parse_checks(text, 1)
    shown_ += tuple(word for check in checks for word in (check.id, check.message, check.fix))
    shown_ += (parse_activation(text).reboot, parse_activation(text).boot_id, locked_by(text))
    assert all(printable(one) == one for one in shown_)


def answers() -> list[str]:
    return [
        "gpunode\tfresh\tyes\ngpunode\toffer\ta 1:2-3 b >= 1\ngpunode\tunasked\tlists\ngpunode\tstatus\tunchanged\n",
        "gpunode\toffer\ta 2\ngpunode\tunresolvable\ta needs b\ngpunode\tstatus\tfailed\ngpunode\tmessage\tno\n",
        "gpunode\tchanged\tpackage\ta\t\t1\ta 1\ngpunode\tstatus\tchanged\n",
    ]


def journals() -> list[str]:
    hashes = ("absent", "1" * 64, "2" * 64)
    records = [
        *wrote("20261122T013821Z-files-1", ("/etc/docker/daemon.json", hashes[1], hashes[2]), run="r1", part="runtime"),
        packages("p1", added={"nvidia-open": "580.95.05-1"}, changed={"dkms": ("3.0-1", "3.1-1")}, held=["dkms"]),
        state("enabled", "nvidia-persistenced.service", "disabled", "enabled", run="r1", part="driver"),
        state("sysctl", "net.ipv4.ip_forward", "0", "1"),
        state("module", "nvidia", "absent", "loaded"),
    ]
    undo = undo_row("20261122T013821Z-files-1", "/etc/docker/daemon.json", b"{}\n", b'{"a": 1}\n')
    follow = ("follow", "20261122T013821Z-files-1", base64.b64encode(b"unit docker.service\n").decode())
    content = ("content", "/etc/docker/daemon.json", base64.b64encode(b'{"a": 1, "b": 2}\n').decode())
    full = recall_text(
        records,
        files={"/etc/docker/daemon.json": "3" * 64},
        kept=[("20261122T013821Z-files-1", "/etc/docker/daemon.json")],
        states={("enabled", "nvidia-persistenced.service"): "enabled", ("sysctl", "net.ipv4.ip_forward"): "1"},
        installed={"nvidia-open": "580.95.05-1 hold", "dkms": "3.1-1"},
        available={"dkms": ["3.0-1"]},
        more=[undo, follow, content, ("mark", "manual dkms"), ("needs", "other", "dkms"), ("gives", "dkms", "dkms")],
    )
    return [full, recall_text(records[:2]), recall_text([])]


def journal(text: str) -> None:
    recall = parse_snapshot(text)
    for verb, to in (("uninstall", None), ("rollback", None), ("rollback", "")):
        back = plan_undo(recall, scope_of(recall, verb=verb, to=to))
        undo_requests(back)
        compared(back)


def undo_records() -> list[str]:
    return [base64.b64decode(undo_row("i", "/etc/a", b"a\nb\n", b"a\nc\n")[2]).decode()]


# ---------------------------------------------------------------- logs


def logs() -> list[str]:
    names = ("reports.yml", "texts.yml")
    texts = [yaml.safe_load((CASES / "doctor" / name).read_text()) for name in names]
    return [case["text"] for cases in texts for case in cases.values()][:60]


def doctor(text: str) -> None:
    faults = load_faults_once()
    found = diagnose_logs(faults, [("log", faults.parts.split([text[:4000]]))])
    diagnosis_data(found, faults)
    diagnosis_text(found, faults)


@cache
def load_faults_once() -> Any:
    return load_faults()


def node_states() -> list[str]:
    return [
        '#: kubelet-devices\n| {"Data": {"PodDeviceEntries": [{"PodUID": "u", "ResourceName": "nvidia.com/gpu"}]}}\n',
        "#: kube-scheduler-manifest\n| spec:\n|   containers: [{command: [kube-scheduler, --config=/etc/a]}]\n",
        '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}',
    ]


def doctor_state(text: str) -> None:
    encoded = base64.b64encode(text.encode(errors="replace")).decode()
    size = len(text.encode(errors="replace"))
    daemon = f"#: files\n#: file /etc/docker/daemon.json\n| 644 root:root {size}\n| {encoded}\n"
    facts = parse_probe(f"#: gpunode-probe 1\n{daemon}#: end\n")
    state_faults(facts, split_sections(text), rules())


# ---------------------------------------------------------------- files of nodes


RUNTIMES = (*ENGINES, *filter(None, get_args(Distribution)))
Files = dict[str, bytes]


def edit_cases(*kinds: str) -> list[str]:
    """The cases of tests/edits as JSON: name and files, of which UTF-8 alone is kept."""
    found = []
    for case in cases(*kinds):
        files = {path: data.decode(errors="replace") for path, data in case.before.items()}
        if files:
            found.append(json.dumps({"case": case.id, "files": files}))
    return found


@cache
def wanted(case: str) -> dict[str, Any]:
    kind, _, name = case.partition("/")
    found = dict(case_of(kind, name).asked)
    if kind in ENGINES:
        found["runtime"] = kind
    elif kind in RUNTIMES:
        found |= {"runtime": "containerd", "distribution": kind}
    return found


def edited(first: str, request: Callable[..., Any], *acts: Callable[[Files, Any], object]) -> Callable[[str], None]:
    """Files as the mutant has them, with the request of its case, or of `first`."""
    known = {json.loads(text)["case"] for text in edit_cases(*(RUNTIMES if first in RUNTIMES else (first,)))}

    def run(text: str) -> None:
        data = _as_json(text)
        files = data.get("files") if isinstance(data, dict) else None
        case = str(data.get("case")) if isinstance(data, dict) else ""
        case = case if case in known else min(one for one in known if one.startswith(f"{first}/"))
        if not isinstance(files, dict):
            [*paths] = json.loads(next(one for one in edit_cases(case.partition("/")[0]) if case in one))["files"]
            files = {paths[0]: text}
        asked = request(**wanted(case))
        printed = {path: one if isinstance(one, str) else json.dumps(one) for path, one in files.items()}
        for act in acts:
            act({path: one.encode(errors="replace") for path, one in printed.items()}, asked)

    return run


def cdi_specs() -> list[str]:
    return [
        "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n  containerEdits:\n    deviceNodes:\n"
        "    - path: /dev/nvidia0\ncontainerEdits:\n  mounts:\n  - hostPath: /usr/lib/libcuda.so.580.95.05\n",
        json.dumps(
            {"kind": "nvidia.com/gpu", "devices": [{"name": "all", "containerEdits": {"hooks": [{"path": "/a"}]}}]}
        ),
    ]


def cdi(text: str) -> None:
    data = text.encode(errors="replace")
    for name in ("/etc/cdi/nvidia.yaml", "/etc/cdi/nvidia.json"):
        try:
            read_spec(name, data)
        except GpunodeError:
            continue


# ---------------------------------------------------------------- clusters


def objects() -> list[str]:
    resources = {"limits": {"nvidia.com/gpu": "1", "aliyun.com/gpu-mem": 3}, "requests": {"nvidia.com/gpu": "1"}}
    meta = {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "1", "labels": {"x": "y"}}
    conditions = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "False", "message": "0/1"}]
    node = {
        "spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"nvidia.com/gpu": "8", "aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "2"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": conditions,
            "nodeInfo": {"bootID": "b"},
        },
    }
    pod = {
        "spec": {
            "nodeName": "a",
            "containers": [{"name": "c", "image": "k8s-device-plugin", "resources": resources}],
            "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": resources}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
        "status": {
            "phase": "Pending",
            "conditions": conditions,
            "containerStatuses": [
                {"name": "c", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "x"}}},
                {"name": "d", "state": {"terminated": {"exitCode": 1}}, "lastState": {"terminated": {"message": "m"}}},
            ],
        },
    }
    owner = {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "controller": True}]}
    workload = {
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": {"spec": pod["spec"]}},
        "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "conditions": conditions},
    }
    inventory = {"format": 1, "objects": [], "nodes": {"a": {"labels": ["x"], "taints": []}}}
    slice_ = {
        "driver": "gpu.nvidia.com",
        "nodeName": "a",
        "pool": {"name": "a", "generation": 1},
        "devices": [{"name": "gpu-0", "basic": {"attributes": {"type": {"string": "gpu"}}}}],
    }
    result = {"driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-0"}
    claim = {"reservedFor": [{"resource": "pods", "name": "a"}], "allocation": {"devices": {"results": [result]}}}
    plugin = {"data": {"default": "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"}}
    made = [
        ("Node", "nodes", {}, node),
        ("Pod", "pods", {}, pod),
        ("Pod", "pods", owner, pod),
        *((kind, f"{kind.lower()}s", {}, workload) for kind in ("DaemonSet", "Deployment", "StatefulSet")),
        ("ConfigMap", "configmaps", {}, {"data": {"inventory.json": json.dumps(inventory)}}),
        ("ConfigMap", "configmaps", {}, plugin),
        ("ResourceSlice", "resourceslices", {}, {"spec": slice_}),
        ("ResourceClaim", "resourceclaims", {}, {"status": claim}),
    ]
    return [
        json.dumps({"plural": plural, "item": {"apiVersion": "v1", "kind": kind, "metadata": {**meta, **more}, **body}})
        for kind, plural, more, body in made
    ]


def cluster(text: str) -> None:
    """One object of an answer, through the check where answers come in, to every reader of its kind."""
    data = _as_json(text)
    if not isinstance(data, dict) or not isinstance(data.get("plural"), str):
        data = {"plural": "pods", "item": data}
    plural = data["plural"]
    item = checked_object(data.get("item"), plural, "the API")
    if isinstance(item.get("apiVersion"), str) and isinstance(item.get("kind"), str):
        shown(item)
    owner_words(item)
    good = [json.loads(one)["item"] for one in objects()]
    of = {name: [item] if name == plural else [one for one in good if f"{one['kind'].lower()}s" == name] for name in
          ("nodes", "pods", "resourceslices", "resourceclaims")}  # fmt: skip
    found = usage(of["nodes"], of["pods"], slices=of["resourceslices"], claims=of["resourceclaims"])
    usage_data(found)
    usage_text(found, details=True)
    node_names(["a", "z"], of["nodes"])
    drain_plan(of["pods"], daemon_sets_of(of["pods"]), DrainSpec())
    for pod in of["pods"]:
        pod_trouble(pod)
    if plural in ("daemonsets", "deployments", "statefulsets"):
        readiness(item)
        offers_gpus(item)
    if plural == "configmaps":
        parse_inventory(item)


# ---------------------------------------------------------------- repositories, keys, people's files

DEB = (
    "Package: a\nVersion: 1:2-3\nArchitecture: amd64\nDepends: b (>= 1), c | d\nFilename: pool/a.deb\nSize: 1\nSHA256: "
)
RPM = (
    '<package type="rpm"><name>a</name><arch>x86_64</arch><version epoch="1" ver="2" rel="3"/>'
    f'<checksum type="sha256" pkgid="YES">{"a" * 64}</checksum><size package="5"/><location href="a.rpm"/>'
    '<format><rpm:requires><rpm:entry name="b" flags="GE" epoch="0" ver="1"/></rpm:requires></format></package>'
)


def repositories() -> list[str]:
    repomd = f'<data type="primary"><location href="p.gz"/><checksum type="sha256">{"b" * 64}</checksum></data>'
    return [f"{DEB}{'c' * 64}\n", RPM, repomd, "[a]\nbaseurl=https://x/\nenabled=1\n",
            "deb [signed-by=/a.gpg] https://x/ stable main\n", "Types: deb\nURIs: https://x/\nSuites: /\n"]  # fmt: skip


def repository(text: str) -> None:
    acts: tuple[Callable[[], object], ...] = (
        lambda: list(deb.parse_packages(text, repository="r", base="b")),
        lambda: list(deb.parse_relations(text[:2000])),
        lambda: deb.release_hashes(text),
        lambda: rpm.parse_repomd(text, "w"),
        lambda: list(rpm.parse_primary(text, text, repository="r", base="b", origin="o")),
        lambda: upstream.parse_sources(text, "w"),
        lambda: manifest.parse_manifest(text.encode(errors="replace"), "w"),
        lambda: rpm.signed_header(text.encode("latin-1", "replace"), "w"),
        lambda: parse_pci_ids(text),
    )
    for act in acts:
        try:
            act()
        except GpunodeError:
            continue


def keys() -> list[str]:
    return [path.read_bytes().decode("latin-1") for path in sorted((CASES / "keys").iterdir())]


def key(text: str) -> None:
    data = text.encode("latin-1", "replace")
    try:
        fingerprints(data)
    finally:
        binary(data)


def specs() -> list[str]:
    return [json.dumps(yaml.safe_load(path.read_text())["spec"]) for path in sorted(CASES.glob("plans/*/case.yml"))]


def spec(text: str) -> None:
    parse_spec(_as_json(text))
    parse_lock(_as_json(text) or {}, "gpunode.lock")


TARGETS = (
    Target(what="probe → facts, health, plan", seeds=probes, run=facts_and_plan, inputs=3_000),
    Target(what="probe → redacted probe", seeds=probes, run=redact, inputs=1_000),
    Target(what="saved facts (JSON)", seeds=saved_facts, run=lambda t: facts_from_data(_as_json(t)), inputs=5_000),
    Target(what="lines of node scripts, checks of smoke.sh", seeds=outcomes, run=outcome, inputs=20_000),
    Target(what="answers of packages.sh", seeds=answers, run=lambda t: read_answer(t, 0, ["a"]), inputs=20_000),
    Target(what="journal of a node → what to undo", seeds=journals, run=journal, inputs=20_000),
    Target(what="undo records", seeds=undo_records, run=lambda t: undo_from_data(_as_json(t)), inputs=50_000),
    Target(what="logs → faults", seeds=logs, run=doctor, inputs=5_000),
    Target(what="state of a node → faults", seeds=node_states, run=doctor_state, inputs=10_000),
    Target(
        what="files of container engines",
        seeds=lambda: edit_cases(*RUNTIMES),
        run=edited("containerd", RuntimeRequest, configure_runtime, runtime_state, unconfigure_runtime),
        inputs=2_000,
    ),
    Target(
        what="files of the kubelet",
        seeds=lambda: edit_cases("kubelet"),
        run=edited(
            "kubelet",
            KubeletRequest,
            lambda files, asked: kubelet_target(asked, rules()).configure(files),
            lambda files, asked: kubelet_target(asked, rules()).unconfigure(files),
        ),
        inputs=600,
    ),
    Target(
        what="files of kube-scheduler",
        seeds=lambda: edit_cases("scheduler"),
        run=edited(
            "scheduler",
            SchedulerRequest,
            lambda files, asked: scheduler_target(asked, rules()).configure(files),
            lambda files, asked: scheduler_target(asked, rules()).unconfigure(files),
        ),
        inputs=500,
    ),
    Target(what="CDI specifications", seeds=cdi_specs, run=cdi, inputs=30_000),
    Target(what="objects of a Kubernetes API", seeds=objects, run=cluster, inputs=10_000),
    Target(what="package lists, sources, manifests of bundles", seeds=repositories, run=repository, inputs=20_000),
    Target(what="OpenPGP keys", seeds=keys, run=key, inputs=40_000),
    Target(what="gpunode.yml, gpunode.lock", seeds=specs, run=spec, inputs=15_000),
    Target(what="results in reports", seeds=saved_facts, run=lambda t: seen_from(_as_json(t)), inputs=20_000),
    Target(what="secrets in any text", seeds=logs, run=mask, inputs=10_000),
)
