"""CDI: specifications as they are read, and whether they fit the node."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpunode.core.checks.health import health_checks
from gpunode.core.errors import InputError
from gpunode.core.facts import parse_probe
from gpunode.core.facts.cdi import KIND, read_spec, stale
from gpunode.core.items.cdi import cdi_warnings
from gpunode.core.items.file import File
from gpunode.core.items.item import ItemKey, Question, Wanted
from gpunode.core.model import (
    Cdi,
    CdiGpu,
    CdiSpec,
    Changed,
    ConfigFile,
    DriverState,
    NodeFacts,
    NvmlGpu,
    Outcome,
    PciDevice,
    Runtime,
    Solution,
    ToolkitChoice,
)
from gpunode.core.plan import make_plan
from gpunode.core.plan.steps import wanted
from gpunode.core.spec import parse_spec
from gpunode.edge.desired import load_templates
from gpunode.edge.host.cdi import misfits, with_specification
from gpunode.edge.host.runtimes import Options
from gpunode.edge.load import load_knowledge

PLACE = "/run/cdi/nvidia.yaml"
# as nvidia-ctk 1.20 writes it, for one GPU and one that is cut into two MIG devices
SPEC = """---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
              hostPath: /dev/nvidia0
    - name: GPU-aaaa
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
    - name: "1:0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia1
            - path: /dev/nvidia-caps/nvidia-cap12
    - name: "1:1"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia1
    - name: all
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
            - path: /dev/nvidia1
containerEdits:
    env:
        - NVIDIA_VISIBLE_DEVICES=void
    deviceNodes:
        - path: /dev/nvidiactl
    hooks:
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib/x86_64-linux-gnu]
    mounts:
        - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
          containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
          options: [ro, nosuid, nodev, rbind, rprivate]
"""
READ = CdiSpec(
    path=PLACE,
    kind=KIND,
    devices=("0", "GPU-aaaa", "1:0", "1:1", "all"),
    minors=(0, 1),
    driver="580.95.05",
    needs=("/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", "/usr/bin/nvidia-cdi-hook"),
    version="0.5.0",
)
GPUS = (CdiGpu(minor=0, uuid="GPU-aaaa"), CdiGpu(minor=1, uuid="GPU-bbbb", mig_devices=2))
NVML = (NvmlGpu(index=0, uuid="GPU-aaaa"), NvmlGpu(index=1, uuid="GPU-bbbb", mig_current="Enabled"))
NODE = NodeFacts(
    driver=DriverState(loaded="580.95.05", userspace="580.95.05"), nvml=NVML, cdi=Cdi(specs=(READ,), gpus=GPUS)
)


def test_a_specification_is_read_as_yaml_and_as_json() -> None:
    assert read_spec(PLACE, SPEC.encode()) == READ
    path = "/etc/cdi/nvidia.json"
    assert read_spec(path, json.dumps(yaml.safe_load(SPEC)).encode()) == replace(READ, path=path)


@pytest.mark.parametrize(
    ("path", "text", "what"),
    [
        (PLACE, "kind: [\n", "/run/cdi/nvidia.yaml:2:1: "),
        (PLACE, "- a\n", "/run/cdi/nvidia.yaml: the file is no mapping"),
        (PLACE, "", "/run/cdi/nvidia.yaml: the file is no mapping"),
        (PLACE, "kind: nvidia.com/gpu\ndevices: 1\n", "/run/cdi/nvidia.yaml: devices is no list"),
        (
            PLACE,
            "kind: nvidia.com/gpu\ndevices: [{name: 0}]\n",
            "/run/cdi/nvidia.yaml: a device's name is 0, no text",
        ),
        (PLACE, "kind: nvidia.com/gpu\ncontainerEdits: {mounts: [{}]}\n", "the path of an entry of mounts is null"),
        (PLACE, "a: 2020-02-31\n", "/run/cdi/nvidia.yaml: day"),
        (
            PLACE,
            "a: !!python/object/apply:os.system [id]\n",
            "/run/cdi/nvidia.yaml:1:4: could not determine a constructor",
        ),
        ("/etc/cdi/a.json", '{"kind": }', "/etc/cdi/a.json:1:10: Expecting value"),
        ("/etc/cdi/a.json", "[" * 100_000, "/etc/cdi/a.json: "),
    ],
)
def test_a_broken_specification_is_named_with_its_place(path: str, text: str, what: str) -> None:
    with pytest.raises(InputError) as error:
        read_spec(path, text.encode())
    assert what in error.value.what


@given(st.binary(max_size=200), st.sampled_from([PLACE, "/etc/cdi/x.json"]))
def test_any_bytes_are_read_or_refused_in_our_words(data: bytes, path: str) -> None:
    try:
        read_spec(path, data)
    except InputError:
        return


@given(st.text(alphabet="{}[]:,-&*!|>'\"#%@ \n\tkinddevicesname0?<=~", max_size=80))
def test_any_yaml_is_read_or_refused_in_our_words(text: str) -> None:
    try:
        read_spec(PLACE, text.encode())
    except InputError:
        return


# ---------------------------------------------------------------- does it fit?


def test_a_specification_that_fits_is_fresh() -> None:
    assert stale(NODE) == ()


def test_a_gpu_that_fell_off_the_bus_is_gone_although_proc_still_has_it() -> None:
    one = replace(READ, devices=("0", "GPU-aaaa", "all"))
    assert stale(replace(NODE, nvml=NVML[:1], cdi=Cdi(specs=(one,), gpus=GPUS))) == (
        f"{PLACE} names GPUs that are gone: /dev/nvidia1",
    )


def test_without_a_driver_its_devices_are_not_judged() -> None:
    assert stale(NodeFacts(cdi=Cdi(specs=(READ,)))) == ()


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (NodeFacts(), "there is no CDI specification of nvidia.com/gpu in /etc/cdi or /run/cdi"),
        (
            replace(NODE, driver=DriverState(loaded="580.95.05", userspace="595.58.03")),
            "/run/cdi/nvidia.yaml is made for driver 580.95.05; installed is 595.58.03",
        ),
        (
            replace(NODE, cdi=replace(NODE.cdi, missing=READ.needs[:1])),
            "/run/cdi/nvidia.yaml brings files that are gone: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
        ),
        (
            replace(NODE, cdi=replace(NODE.cdi, gpus=GPUS[:1], specs=(replace(READ, devices=("0", "GPU-aaaa")),))),
            "/run/cdi/nvidia.yaml names GPUs that are gone: /dev/nvidia1",
        ),
        (
            replace(NODE, nvml=(), cdi=replace(NODE.cdi, gpus=(*GPUS, CdiGpu(minor=2, uuid="GPU-cccc")))),
            "/run/cdi/nvidia.yaml lacks /dev/nvidia2",
        ),
        (
            replace(NODE, nvml=(), cdi=replace(NODE.cdi, gpus=(replace(GPUS[0], uuid="GPU-new"), GPUS[1]))),
            "/run/cdi/nvidia.yaml names GPUs that are gone: GPU-aaaa",
        ),
        (
            replace(NODE, cdi=replace(NODE.cdi, gpus=(GPUS[0], replace(GPUS[1], mig_devices=7)))),
            "/run/cdi/nvidia.yaml names 2 MIG devices; there are 7",
        ),
        (
            replace(NODE, cdi=replace(NODE.cdi, specs=(CdiSpec(path=PLACE, error="/run/cdi/nvidia.yaml:2:1: bad"),))),
            "it cannot be read: /run/cdi/nvidia.yaml:2:1: bad",
        ),
        (
            replace(NODE, cdi=replace(NODE.cdi, specs=(READ, replace(READ, path="/run/cdi/gpus.json")))),
            "/run/cdi/nvidia.yaml and /run/cdi/gpus.json name the same devices: engines take neither",
        ),
    ],
)
def test_what_does_not_fit_is_said(facts: NodeFacts, reason: str) -> None:
    assert stale(facts) == (reason,)


def test_a_gpu_whose_mig_mode_is_on_and_that_is_not_cut_yet_lacks_nothing() -> None:
    bare = replace(READ, devices=("0", "GPU-aaaa", "all"), minors=(0,))
    assert stale(replace(NODE, cdi=Cdi(specs=(bare,), gpus=(GPUS[0], replace(GPUS[1], mig_devices=0))))) == ()


def test_specifications_of_other_kinds_are_not_ours() -> None:
    other = CdiSpec(path="/run/cdi/k8s.yaml", kind="k8s.device-plugin.nvidia.com/gpu", devices=("9",), minors=(9,))
    assert stale(replace(NODE, cdi=replace(NODE.cdi, specs=(other, READ)))) == ()


# ---------------------------------------------------------------- from the probe


def test_the_probe_gives_specifications_gpus_and_what_is_missing() -> None:
    data = base64.b64encode(SPEC.encode()).decode()
    text = f"""#: gpunode-probe 1
#: cdi
| gpu 0 GPU-aaaa
| gpu 1 GPU-bbbb
| gpu x
| mig 1 2
| missing /dev/nvidia1
#: files
#: file {PLACE}
| 644 root:root {len(SPEC)}
| {data}
#: file /etc/cdi/broken.yaml
| 644 root:root 2
| {base64.b64encode(b"[" + b"1").decode()}
#: file /etc/cdi/README
| 644 root:root 0
#: end
"""
    facts = parse_probe(text)
    broken, read = facts.cdi.specs
    assert read == READ
    assert broken.error.startswith("/etc/cdi/broken.yaml:2:1: ")
    assert facts.cdi.gpus == GPUS
    assert facts.cdi.missing == ("/dev/nvidia1",)
    assert facts.notes == ("cdi: not understood: 'x'",)


# ---------------------------------------------------------------- in the plan, and in verify

KEY = ItemKey("runtime", "cdi", "/var/run/cdi/nvidia.yaml")
TOOLKIT = Solution(toolkit=ToolkitChoice(version="1.20.0", method="packages", packages=(), repository=""))


def want(facts: NodeFacts, spec: dict[str, object]) -> Wanted:
    return wanted(Question(facts=facts, spec=parse_spec(spec), solution=TOOLKIT, templates=load_templates()))


def test_the_plan_wants_a_specification_where_an_engine_goes_by_it() -> None:
    containerd, podman = Runtime(name="containerd", version="2.1.9"), Runtime(name="podman", version="5.0.0")
    node = replace(NODE, cdi=Cdi())
    assert KEY not in want(replace(node, runtimes=(containerd,)), {}).items
    assert KEY in want(replace(node, runtimes=(containerd,)), {"runtimes": {"containerd": {"cdi": True}}}).items
    assert KEY in want(replace(node, runtimes=(podman,)), {}).items
    assert KEY not in want(replace(node, runtimes=(podman,)), {"runtimes": {"podman": {"manage": "ignore"}}}).items
    assert KEY in want(NODE, {}).items, "one that nvidia-ctk made is kept fresh"
    assert KEY not in want(NodeFacts(runtimes=(podman,)), {}).items, "without a driver none can be made"
    mig = {"sharing": {"strategy": "mig", "mig": {"profiles": {"1g.10gb": 7}}}}
    assert KEY in want(replace(node, runtimes=(containerd,)), mig).items, (
        "the toolkit's unit makes one before GPUs are cut"
    )


def test_the_plan_says_what_the_specification_is() -> None:
    fresh, old = NODE, replace(NODE, driver=DriverState(loaded="595.58.03", userspace="595.58.03"))
    assert want(fresh, {}).items[KEY].actual(fresh) == "fresh"
    assert want(old, {}).items[KEY].actual(old) == f"{PLACE} is made for driver 580.95.05; installed is 595.58.03"


PODMAN_4 = Runtime(name="podman", version="4.9.3+ds1-1ubuntu0.2")
FLAG = "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=no-additional-gids-for-device-nodes"
SETTINGS_KEY = ItemKey("runtime", "files", "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env")


def setting(found: Wanted) -> str | None:
    item = found.items.get(SETTINGS_KEY)
    assert item is None or isinstance(item, File)
    return item.text if item else "nothing asked for"


def test_a_podman_that_cannot_read_cdi_0_7_gets_a_specification_without_additional_groups() -> None:
    new = replace(NODE, runtimes=(PODMAN_4,), cdi=replace(NODE.cdi, specs=(replace(READ, version="0.7.0"),)))
    says = f"{PLACE} follows CDI 0.7.0, which podman {PODMAN_4.version} cannot read"
    assert stale(new) == (says,) and want(new, {}).items[KEY].actual(new) == says
    assert setting(want(new, {})) == f"{FLAG}\n"
    gpu = PciDevice(slot="0000:17:00.0", id="10de:2330", class_code="0302")
    assert [
        one.status for one in health_checks(replace(new, gpus=(gpu,)), load_knowledge()) if one.id == "cdi.fresh"
    ] == ["failed"]
    assert stale(replace(new, runtimes=(replace(PODMAN_4, version="5.1.0"),))) == ()


@pytest.mark.parametrize(
    ("engine", "spec", "asked"),
    [
        (Runtime(name="docker", version="25.0.3"), {"runtimes": {"docker": {"cdi": True}}}, True),
        (Runtime(name="docker", version="25.0.3"), {}, False),
        (Runtime(name="docker", version="26.1.0"), {"runtimes": {"docker": {"cdi": True}}}, False),
        (Runtime(name="containerd", version="1.7.15"), {"runtimes": {"containerd": {"cdi": True}}}, True),
        (Runtime(name="containerd", version="v1.7.16"), {"runtimes": {"containerd": {"cdi": True}}}, False),
        (Runtime(name="podman", version="5.0.3"), {}, True),
        (Runtime(name="podman", version=""), {}, False),
    ],
)
def test_which_engines_need_an_older_specification(engine: Runtime, spec: dict[str, object], asked: bool) -> None:
    assert (setting(want(replace(NODE, runtimes=(engine,)), spec)) == f"{FLAG}\n") is asked


def test_settings_of_others_stay_and_ours_go_with_the_need() -> None:
    def node(text: str, version: str) -> NodeFacts:
        file = ConfigFile(path=SETTINGS_KEY.name, sha256="1" * 64, mode=0o644, size=len(text), data=text.encode())
        return replace(NODE, runtimes=(replace(PODMAN_4, version=version),), files={file.path: file})

    mine = "# mine\nNVIDIA_CTK_DEBUG=1\nNVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS='allow-x'\n"
    flags = "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=allow-x,no-additional-gids-for-device-nodes"
    assert setting(want(node(mine, "4.9.3"), {})) == f"# mine\nNVIDIA_CTK_DEBUG=1\n{flags}\n"
    assert setting(want(node(mine, "5.4.0"), {})) == "nothing asked for"
    assert setting(want(node(f"{FLAG}\n", "4.9.3"), {})) == f"{FLAG}\n"
    assert setting(want(node(f"{FLAG}\n", "5.4.0"), {})) is None
    older = replace(TOOLKIT, toolkit=ToolkitChoice(version="1.18.1", method="packages", packages=(), repository=""))
    asked = Question(facts=node("", "4.9.3"), spec=parse_spec({}), solution=older, templates=load_templates())
    assert setting(wanted(asked)) == "nothing asked for"


def test_two_specifications_in_two_folders_are_a_warning() -> None:
    both = replace(NODE, cdi=replace(NODE.cdi, specs=(replace(READ, path="/etc/cdi/nvidia.yaml"), READ)))
    both = replace(both, gpus=(PciDevice(slot="0000:17:00.0", id="10de:2330", class_code="0302"),))
    [check] = [one for one in health_checks(both, load_knowledge()) if one.id == "cdi.fresh"]
    assert check.status == "warning" and check.fix.startswith("remove /etc/cdi/nvidia.yaml")


@pytest.mark.parametrize("name", ["crio", "podman"])
def test_an_engine_that_gpunode_does_not_install_is_refused_by_name(name: str) -> None:
    [problem] = want(NODE, {"runtimes": {name: {"manage": "install"}}}).problems
    assert problem.what == f"runtimes.{name}.manage is install, and gpunode does not install {name}"


def test_verify_fails_for_a_stale_specification_and_warns_where_podman_has_none() -> None:
    gpu = PciDevice(slot="0000:17:00.0", id="10de:2330", class_code="0302")

    def check(facts: NodeFacts) -> list[tuple[str, str]]:
        found = health_checks(replace(facts, gpus=(gpu,)), load_knowledge())
        return [(one.status, one.fix) for one in found if one.id == "cdi.fresh"]

    podman = Runtime(name="podman")
    stale_one = replace(NODE, driver=DriverState(userspace="595.58.03"))
    by_podman = "gpunode runtime configure --runtime podman renews it"
    assert check(NODE) == [("passed", "")]
    assert check(replace(NODE, cdi=Cdi())) == []
    assert check(replace(NODE, cdi=Cdi(), runtimes=(podman,))) == [("warning", by_podman)]
    assert check(replace(stale_one, runtimes=(podman,))) == [("failed", by_podman)]
    assert check(replace(stale_one, runtimes=())) == [("failed", "gpunode provision renews it")]
    other = CdiSpec(path="/run/cdi/mine.yaml", error="/run/cdi/mine.yaml:1:1: bad")
    foreign = replace(NODE, cdi=replace(NODE.cdi, specs=(READ, other)))
    assert check(foreign) == [("failed", "fix or remove that file: nvidia-ctk did not make it")]
    [warning] = cdi_warnings(foreign)
    assert warning.startswith("it cannot be read: /run/cdi/mine.yaml:1:1: bad; nvidia-ctk did not make that file")
    assert not list(cdi_warnings(NODE)) and not list(cdi_warnings(replace(NODE, cdi=Cdi())))


def test_the_plan_says_which_file_it_renews_that_nothing_else_does() -> None:
    def title(path: str) -> str:
        specs = (replace(READ, path=path, driver="570.1"),)
        gpu = PciDevice(slot="0000:17:00.0", id="10de:2330", class_code="0302")
        facts = replace(NODE, root=True, gpus=(gpu,), cdi=replace(NODE.cdi, specs=specs))
        asked = Question(facts=facts, spec=parse_spec({}), solution=TOOLKIT, templates=load_templates())
        plan = make_plan("n", asked, key_of=lambda _: "")
        return next(step.title for step in plan.steps if step.id == "runtime.cdi")

    assert "/etc/cdi/nvidia.yaml" in title("/etc/cdi/nvidia.yaml")
    assert "renew" not in title("/run/cdi/nvidia.yaml")


# ---------------------------------------------------------------- gpunode runtime --runtime podman


def answering(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """What runs on this machine prints `text`."""
    monkeypatch.setattr("gpunode.edge.host.cdi.local_run", lambda program, **_: (0, text, ""))


PODMAN = Options(runtime="podman")
A, B = (Changed(kind="file", name=path, text=f"creates {path}") for path in ("/a", "/b"))
UNCHANGED = Outcome(status="unchanged", message="every file is as it should be")


def test_an_engine_that_does_not_go_by_cdi_is_asked_for_no_specification() -> None:
    for other in (Options(runtime="docker"), Options(runtime="docker", cdi=False)):
        assert misfits(other) == ()
        assert with_specification(other, UNCHANGED, check=False) is UNCHANGED
    assert misfits(Options(runtime="podman", root=Path("/mnt/image"))) == ()


@pytest.mark.parametrize("options", [PODMAN, Options(runtime="docker", cdi=True)], ids=["podman", "docker --cdi"])
def test_the_outcome_is_that_of_the_edit_and_of_the_specification_where_cdi_is_on(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(
        monkeypatch, "gpunode\tchanged\tfile\t/a\t\t\tcreates /a\ngpunode\tstatus\tchanged\ngpunode\tmessage\tmade\n"
    )
    assert with_specification(options, UNCHANGED, check=False) == Outcome(
        status="changed", message="made", changed=(A,)
    )
    edited = Outcome(status="changed", message="1 file changed", changed=(B,))
    both = with_specification(options, edited, check=False)
    assert both == Outcome(status="changed", message="1 file changed; made", changed=(B, A))


def test_an_edit_that_failed_makes_no_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpunode.edge.host.cdi.local_run", None)
    assert with_specification(PODMAN, None, check=False) is None
    failed = Outcome(status="failed", message="no room")
    assert with_specification(PODMAN, failed, check=False) is failed


def test_what_does_not_fit_is_found_by_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "#: gpunode-probe 1\n#: cdi\n| gpu 0 GPU-a\n#: files\n#: end\n")
    assert misfits(PODMAN) == ("there is no CDI specification of nvidia.com/gpu in /etc/cdi or /run/cdi",)
