"""Old set-ups: nvidia-docker2 and its lists, the revoked key, packages of others; what a plan makes of them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.facts import parse_probe
from gpunode.core.items.package import packages_request
from gpunode.core.items.repository import keyrings_rid_of, revoked_files
from gpunode.core.model import ConfigFile, InstalledPackage, NodeFacts
from gpunode.core.openpgp import fingerprints, without
from gpunode.edge import load
from gpunode.edge.desired import DesiredState

CASES = Path(__file__).parents[1] / "cases"
TWO = (CASES / "keys/two.asc").read_bytes()
DAEMON = "/etc/docker/daemon.json"
LISTS = {
    "nvidia-docker.list": (
        "deb https://nvidia.github.io/libnvidia-container/debian10/$(ARCH) /\n"
        "deb https://nvidia.github.io/nvidia-container-runtime/debian10/$(ARCH) /\n"
        "deb https://nvidia.github.io/nvidia-docker/debian10/$(ARCH) /\n"
    ),
    "libnvidia-container.list": "deb https://nvidia.github.io/libnvidia-container/stable/ubuntu18.04/$(ARCH) /\n"
    "#deb https://nvidia.github.io/libnvidia-container/experimental/ubuntu18.04/$(ARCH) /\n",
    "nvidia-container-runtime.list": "deb https://nvidia.github.io/nvidia-container-runtime/ubuntu20.04/$(ARCH) /\n",
}


@cache
def probe(name: str) -> NodeFacts:
    return parse_probe((CASES / "probes" / name / "probe.txt").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def no_key_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n")


def old(name: str, **versions: str) -> NodeFacts:
    """The node with these packages as well: nvidia_docker2="2.0.3…"."""
    facts = probe(name)
    more = {n.replace("_", "-"): InstalledPackage(name=n.replace("_", "-"), version=v) for n, v in versions.items()}
    return replace(facts, packages={**facts.packages, **more})


def steps(facts: NodeFacts, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    return {step.id: step for step in DesiredState(spec or {}).plan("node1", facts).plan.steps}


def test_nvidia_docker2_goes_in_the_transaction_that_installs_the_toolkit() -> None:
    found = steps(old("debian12-h100-fresh", nvidia_docker2="2.13.0-1", nvidia_container_runtime="3.13.0-1"))
    assert found["toolkit.packages"].value["remove"] == ["nvidia-docker2", "nvidia-container-runtime"]
    assert "nvidia-container-toolkit" in [p["name"] for p in found["toolkit.packages"].value["install"]]
    assert "nvidia-docker2" not in found["driver.packages"].value["remove"]


def test_one_that_is_bound_to_a_version_of_docker_goes_first_and_the_plan_says_why() -> None:
    found = steps(old("debian12-h100-fresh", nvidia_docker2="2.0.3+docker18.09.2-1", docker_ce="5:20.10.24~3-0~debian"))
    assert found["driver.packages"].value["remove"] == ["nvidia-docker2"]
    assert found["toolkit.packages"].value["remove"] == []
    assert ["asks for docker-ce 18.09.2 and no other" in r.why for r in found["driver.packages"].reasons].count(
        True
    ) == 1


def test_a_file_that_rpm_would_take_along_is_kept() -> None:
    facts = old("rocky9-h100-fresh", nvidia_docker2="2.13.0-1")
    assert "keep" not in steps(facts)["toolkit.packages"].value
    file = ConfigFile(path=DAEMON, sha256="1" * 64, data=b'{"log-driver": "journald"}')
    facts = replace(facts, files={**facts.files, DAEMON: file})
    value = steps(facts)["toolkit.packages"].value
    assert value["keep"] == [DAEMON]
    assert packages_request(value)["keep"] == f"{DAEMON}\n".encode()


SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_a_file_that_went_with_its_package_is_put_back_as_it_was(shell: list[str], tmp_path: Path) -> None:
    gone, stays = tmp_path / "daemon.json", tmp_path / "other.json"
    gone.write_text('{"log-driver": "journald"}')
    gone.chmod(0o640)
    stays.write_text("mine")
    (tmp_path / "in").mkdir()
    (tmp_path / "backup").mkdir()
    (tmp_path / "in/keep").write_text(f"{gone}\n{stays}\n{tmp_path}/never\n")
    text = (Path(__file__).parents[2] / "gpunode/node/packages/packages.sh").read_text()
    start = text.index("keep_files() {")
    functions = text[start : text.index("\nmain() {")]
    script = f"""
requested() {{ cat "$GPUNODE_IN/$1"; }}
say() {{ echo "$1: $2"; }}
fail() {{ echo "failed: $1"; exit 1; }}
kept={tmp_path}/backup
{functions}
keep_files
rm {gone}
echo changed >{stays}
give_files_back
"""
    env = {"GPUNODE_IN": str(tmp_path / "in"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*shell, "-c", script], capture_output=True, text=True, env=env, check=True)
    assert done.stdout == f"note: {gone} was put back: its package took it along\n"
    assert (gone.read_text(), gone.stat().st_mode & 0o777) == ('{"log-driver": "journald"}', 0o640)
    assert stays.read_text() == "changed\n"


def test_lists_of_a_distribution_each_give_way_to_the_general_repository() -> None:
    facts = probe("debian12-h100-fresh")
    folder = "/etc/apt/sources.list.d"
    files = {
        f"{folder}/{n}": ConfigFile(path=f"{folder}/{n}", sha256="1" * 64, data=t.encode()) for n, t in LISTS.items()
    }
    found = steps(replace(facts, files={**facts.files, **files}))["toolkit.sources"].value
    assert {f["path"] for f in found if f["content"] is None} == set(files)
    assert f"{folder}/gpunode-nvidia-container-toolkit.sources" in [f["path"] for f in found if f["content"]]


def test_the_other_keys_of_a_keyring_are_kept() -> None:
    one, rsa = fingerprints(TWO)
    assert fingerprints(without(TWO, [one]).encode()) == (rsa,)
    assert fingerprints(without(TWO, []).encode()) == (one, rsa)
    assert without(TWO, [one, rsa]) == ""


@pytest.mark.skipif(not shutil.which("gpg"), reason="no gpg")
def test_gpg_reads_what_is_left_of_a_keyring(tmp_path: Path) -> None:
    one, rsa = fingerprints(TWO)
    tmp_path.chmod(0o700)
    command = ["gpg", "--homedir", str(tmp_path), "--with-colons", "--show-keys"]
    done = subprocess.run(command, input=without(TWO, [one]), capture_output=True, text=True, check=True)
    assert rsa in done.stdout and one not in done.stdout


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("/etc/apt/trusted.gpg", "/etc/apt/trusted.gpg.d/gpunode-kept-trusted.asc"),
        ("/etc/apt/trusted.gpg.d/all.asc", "/etc/apt/trusted.gpg.d/gpunode-kept-all.asc"),
        ("/usr/share/keyrings/nvidia.asc", ""),
    ],
)
def test_a_keyring_with_a_revoked_key_among_others_goes_and_the_others_stay(path: str, left: str) -> None:
    one, rsa = fingerprints(TWO)
    facts = NodeFacts(files={path: ConfigFile(path=path, data=TWO)})
    found = list(keyrings_rid_of(facts, [one]))
    assert [(gone, rest.path, fingerprints((rest.text or "").encode())) for gone, rest in found] == (
        [(path, left, (rsa,))] if left else []
    )
    assert list(keyrings_rid_of(facts, ["0" * 40])) == []
    assert revoked_files(facts, [one]) == () and revoked_files(facts, [one, rsa]) == (path,)


@pytest.mark.parametrize(
    ("node", "packages", "spec", "gone"),
    [
        ("rocky9-h100-fresh", {"kmod_nvidia": "560.1-1"}, {}, ["kmod-nvidia"]),
        ("rocky9-h100-fresh", {"akmod_nvidia": "580.1-1"}, {}, ["akmod-nvidia"]),
        ("rocky9-h100-fresh", {"dkms_nvidia": "580.1-1"}, {}, ["dkms-nvidia"]),
        ("debian12-h100-fresh", {"nvidia_driver_535": "535.1-1"}, {}, ["nvidia-driver-535"]),
        ("debian12-h100-fresh", {"nvidia_headless_470": "470.1-1"}, {}, ["nvidia-headless-470"]),
    ],
)
def test_packages_that_rival_those_of_nvidia_go_in_the_drivers_transaction(
    node: str, packages: dict[str, str], spec: dict[str, Any], gone: list[str]
) -> None:
    assert steps(old(node, **packages), spec)["driver.packages"].value["remove"] == gone


OWN = "535.309.01-0+deb12u1"
DEBIANS_OWN = (
    "firmware-nvidia-gsp libcuda1 libnvidia-ml1 nvidia-alternative nvidia-driver nvidia-driver-bin nvidia-kernel-dkms "
    "nvidia-kernel-support nvidia-smi nvidia-support"
).split()


def with_own() -> NodeFacts:
    facts = old("debian12-h100-fresh", **{name.replace("-", "_"): OWN for name in DEBIANS_OWN})
    return replace(facts, driver=replace(facts.driver, loaded="535.309.01", userspace="535.309.01"))


def test_debians_own_driver_goes_in_the_transaction_that_brings_nvidias() -> None:
    value = steps(with_own())["driver.packages"].value
    assert value["remove"] == ["nvidia-kernel-dkms", "nvidia-smi", "nvidia-alternative", "nvidia-driver-bin"]
    assert set(value["may_go"]) == set(DEBIANS_OWN), "what depends on these may go too, or comes in another version"
    assert packages_request(value)["may_go"].decode().split() == value["may_go"]
    assert "may_go" not in steps(probe("debian12-h100-fresh"))["driver.packages"].value


def test_debians_own_driver_is_no_stranger_to_itself() -> None:
    text = b"deb http://deb.debian.org/debian bookworm main contrib non-free non-free-firmware\n"
    lists = {"/etc/apt/sources.list": ConfigFile(path="/etc/apt/sources.list", data=text)}
    facts = replace(with_own(), files={**with_own().files, **lists})
    found = steps(facts, {"driver": {"branch": "distro"}})
    assert "nvidia-smi" in [p["name"] for p in found["driver.packages"].value["install"]]
    assert found["driver.packages"].value["remove"] == [] and "may_go" not in found["driver.packages"].value


def test_nvidias_packages_give_way_to_debians_own_with_what_depends_on_them() -> None:
    text = b"deb http://deb.debian.org/debian bookworm main contrib non-free non-free-firmware\n"
    lists = {"/etc/apt/sources.list": ConfigFile(path="/etc/apt/sources.list", data=text)}
    facts = old("debian12-h100-provisioned", nvidia_driver_cuda="580.95.05-1", nvidia_driver_libs="580.95.05-1")
    facts = replace(facts, files={**facts.files, **lists})
    value = steps(facts, {"driver": {"branch": "distro"}})["driver.packages"].value
    assert value["remove"] == ["nvidia-kernel-open-dkms", "nvidia-open"]
    assert {"nvidia-driver-cuda", "nvidia-driver-libs"} <= set(value["may_go"])
    assert "nvidia-container-toolkit" not in value["may_go"]
