"""node/smoke/smoke.sh with stand-ins of the tools that it uses; containers that run are tested on lab nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gpunode.core.items.smoke import parse_checks, smoke_files
from gpunode.core.model import Check
from gpunode.core.remote import program
from gpunode.node import script


@pytest.mark.parametrize(
    ("gpus", "loaded", "works", "status"),
    [
        (1, True, True, "passed"),
        (0, False, True, "passed"),
        (1, True, False, "failed"),
        (0, True, False, "failed"),
        (1, False, False, "failed"),
        (0, False, False, "not-proven"),
    ],
)
def test_without_a_driver_that_anybody_asked_for_the_toolkit_is_not_proven(
    gpus: int, loaded: bool, works: bool, status: str, tmp_path: Path
) -> None:
    for name, code in {"nvidia-container-cli": 0 if works else 1, "nvidia-smi": 0}.items():
        fake_program(tmp_path, name, f"echo NVRM version: 595.91.07\nexit {code}")
    fake_program(tmp_path, "docker", '[ "$1" != start ] || echo gpunode-smoke-ran')
    if loaded:
        (tmp_path / "module").mkdir()
    found = smoked(tmp_path, {"gpus": gpus, "toolkit": True, "runtimes": ["docker"], "image": "a/b"})
    assert found["toolkit.cli"].status == status
    assert (found["docker.gpus-all"].status == "not-proven") == (gpus == loaded == 0)


# the form of 3.0 to 4.2, from tables that people published (github NVIDIA/DCGM issues 55 and 253); with 226 it ends
# where its back end could not work (issue 158)
TABLE = """Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Deployment  --------+------------------------------------------------|
| Page Retirement/Row Remap | {}                                           |
|                           | GPU0: {}                                     |
+---------------------------+------------------------------------------------+"""


@pytest.mark.parametrize(
    ("said", "code", "status"),
    [
        (TABLE.format("Pass", "Pass"), 0, "passed"),
        (TABLE.format("Fail", "Fail"), 0, "failed"),
        (TABLE.format("Fail", "Fail"), 226, "failed"),
        (TABLE.format("Pass", "Fail"), 0, "failed"),
        (TABLE.format("Skip", "Skip"), 0, "not-proven"),
        ("Successfully ran diagnostic for group.", 0, "not-proven"),
        ("Error: unable to establish a connection to the specified host: localhost", 1, "failed"),
    ],
)
def test_what_dcgm_says_is_read_from_its_status_and_its_table(
    said: str, code: int, status: str, tmp_path: Path
) -> None:
    fake_program(tmp_path, "dcgmi", f"cat <<'END'\n{said}\nEND\nexit {code}")
    fake_program(tmp_path, "nvidia-smi", "exit 0")
    assert smoked(tmp_path, {"gpus": 1})["dcgm.diag"].status == status


@pytest.mark.parametrize("log", ["", "/data/rke2/agent/containerd/containerd.log and journalctl -u rke2-agent"])
def test_a_pod_that_does_not_start_names_the_log_of_its_containerd(log: str, tmp_path: Path) -> None:
    fake_program(tmp_path, "ctr", "echo gpunode-smoke-ran")
    fake_program(tmp_path, "crictl", '[ "$7" != runp ] || { echo no handler; exit 1; }')
    found = smoked(
        tmp_path, {"runtimes": ["containerd"], "image": "a/b", **({"logs": {"containerd": log}} if log else {})}
    )
    assert found["containerd.binary"].status == "passed"
    for one in ("containerd.cri-nvidia", "containerd.cri-default"):
        assert found[one].message == "no pod sandbox: no handler"
        assert found[one].fix == f"{log or 'journalctl -u containerd'}, on the node"


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            "systemctl start docker; journalctl -u docker says why it does not run",
        ),
        ("Error: No such image: a/b", "set verify.image to one that the node can pull"),
    ],
)
def test_an_image_that_docker_does_not_have_has_its_cause(said: str, fix: str, tmp_path: Path) -> None:
    fake_program(tmp_path, "docker", f"echo '{said}'; exit 1")
    found = smoked(tmp_path, {"runtimes": ["docker"], "image": "a/b", "gpus": 1})["docker.runtime"]
    assert said in found.message and found.fix == fix


@pytest.mark.parametrize("unit", ["docker", "snap.docker.dockerd"])
def test_a_container_that_does_not_start_names_the_unit_of_its_docker(unit: str, tmp_path: Path) -> None:
    fake_program(tmp_path, "docker", '[ "$1" != start ] || echo no such device')
    logs = {} if unit == "docker" else {"logs": {"docker": f"journalctl -u {unit}"}}
    found = smoked(tmp_path, {"runtimes": ["docker"], "image": "a/b", "gpus": 1, **logs})["docker.gpus-all"]
    assert found.message.endswith("could not start a container: no such device")
    assert found.fix == f"journalctl -u {unit}, on the node"


def test_a_mode_of_the_toolkit_that_does_without_docker_gpus_is_no_failure(tmp_path: Path) -> None:
    """What NVIDIA's hook 1.19.1 says when nvidia-container-runtime.mode is cdi or jit-cdi."""
    said = (
        "docker: Error response from daemon: error running prestart hook #0: exit status 1, stdout: , stderr: invoking "
        "the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not supported. Please "
        "use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead: unknown"
    )
    fake_program(tmp_path, "docker", f"[ \"$1\" != start ] || echo '{said}'")
    found = smoked(tmp_path, {"runtimes": ["docker"], "image": "a/b", "gpus": 1})["docker.gpus-all"]
    assert found.status == "not-proven"
    assert "invoking the NVIDIA Container Runtime Hook directly" in found.message
    assert "--device nvidia.com/gpu=all" in found.fix


# What crictl 1.36 said: containerd 2.2.1 could not fetch its sandbox image, was not waited for, had no such runtime
FAILED = 'level=error msg="run pod sandbox: rpc error: code = {}"'
PAUSE = "registry.k8s.io/pause:3.10.1"
NO_IMAGE = FAILED.format(
    rf"Unknown desc = failed to start sandbox \"bceb\": failed to get sandbox image \"{PAUSE}\": failed to pull image "
    rf"\"{PAUSE}\": dial tcp: lookup registry.k8s.io: no such host"
)
NO_TIME = FAILED.format("DeadlineExceeded desc = context deadline exceeded")
NO_RUNTIME = FAILED.format(
    r"Unknown desc = unable to get OCI runtime for sandbox \"4b01\": no runtime for \"nvidia\" is configured"
)


@pytest.mark.parametrize(
    ("said", "images", "status"),
    [
        (NO_IMAGE, "", "not-proven"),
        (NO_TIME, "", "not-proven"),
        (NO_TIME, PAUSE, "failed"),
        (NO_TIME, None, "failed"),  # an engine that hangs
        (NO_RUNTIME, "", "failed"),
    ],
)
def test_without_the_image_of_sandboxes_a_pod_proves_nothing(
    said: str, images: str | None, status: str, tmp_path: Path
) -> None:
    fake_program(tmp_path, "ctr", "echo gpunode-smoke-ran")
    fake_program(tmp_path, "containerd", f"echo \"      sandbox = '{PAUSE}'\"")
    lacks = rf'level=fatal msg="no such image \"{PAUSE}\" present"' if images is not None else NO_TIME
    answer = f"[ \"$8\" = '{images}' ] || {{ cat <<'END'\n{lacks}\nEND\nexit 1; }}"
    verbs = f"runp) cat <<'END'\n{said}\nEND\nexit 1 ;; inspecti) {answer} ;;"
    fake_program(tmp_path, "crictl", f"case $7 in {verbs} esac")
    found = smoked(tmp_path, {"runtimes": ["containerd"], "image": "a/b"})["containerd.cri-nvidia"]
    assert found.status == status
    assert (f"{PAUSE}, is not on the node" in found.message) == (status == "not-proven")


# A crictl whose pods somebody takes away: the first $LOSE of them, while they are $AT.  Containers run at once.
CRICTL = r"""
verb=$7 dir=FOLDER
shift 7
pods=$(cat "$dir/pods" 2>/dev/null || echo 0)
taken() { [ "$pods" -le LOSE ]; }
not_found() { echo "rpc error: code = NotFound desc = an error occurred when try to find it: not found"; exit 1; }
case $verb in
  runp)
    pods=$((pods + 1))
    echo "$pods" >"$dir/pods"
    for last in "$@"; do :; done
    { sed 's/.*"uid":"\([^"]*\)".*/\1/' "$last"; echo; } >>"$dir/uids"
    sed 's/.*"log_directory":"\([^"]*\)".*/\1/' "$last" >"$dir/logs"
    echo "pod$pods"
    ;;
  inspectp)
    case AT in
      ended) taken && echo '{"status": {"state": "SANDBOX_NOTREADY"}, INFO}' && exit ;;
      ran) [ ! -e "$dir/gone$pods" ] || not_found ;;
      torn) ! taken || [ ! -e "$dir/seen$pods" ] || not_found; touch "$dir/seen$pods" ;;
      dead) # the third time
        ! taken || [ ! -e "$dir/again$pods" ] || not_found
        [ ! -e "$dir/seen$pods" ] || touch "$dir/again$pods"
        touch "$dir/seen$pods" ;;
      *) ! taken || not_found ;;
    esac
    echo '{"status": {"state": "SANDBOX_READY"}, INFO}'
    ;;
  create) case AT in created) ! taken || not_found ;; esac; echo container ;;
  start)
    case AT in started) taken && echo "start failed: cannot start a container that has stopped" && exit 1 ;; esac
    case AT in dead) taken && echo "OCI runtime start failed: process is already dead" && exit 1 ;; esac
    case AT in torn) taken && echo "namespace path: lstat /proc/7/ns/ipc" && exit 1 ;; esac
    case AT in broken) echo "OCI runtime create failed: nvidia-container-cli: initialization error" && exit 1 ;; esac
    case AT in inspected | ran | ended) taken && exit ;; esac
    echo "2026-11-22T10:00:00Z stdout F gpunode-smoke-ran" >"$(cat "$dir/logs")/out.log"
    ;;
  inspect)
    case AT in runs) [ -e "$dir/slept" ] || { echo '{"status": {"state": "CONTAINER_RUNNING"}}' && exit; } ;; esac
    case AT in ran) taken && touch "$dir/gone$pods" && not_found ;; esac
    case AT in ended) taken && echo '{"status": {"state": "CONTAINER_EXITED", "exitCode": 137}}' && exit ;; esac
    echo '{"status": {"state": "CONTAINER_EXITED", "exitCode": 0}}'
    ;;
  rmp) echo "$2" >>"$dir/removed" ;;
esac
"""


def a_node_whose_pods_go(
    folder: Path, *, lose: int, at: str, process: str = "kubelet", waits: str = ""
) -> dict[str, Check]:
    fake_program(folder, "ctr", "echo gpunode-smoke-ran")
    fake_program(folder, "sleep", waits)
    text = CRICTL.replace("LOSE", str(lose)).replace("AT", at).replace("FOLDER", str(folder))
    fake_program(folder, "crictl", text.replace("INFO", '"info": {"BinaryName": "/usr/bin/nvidia-container-runtime"}'))
    (folder / "proc/1").mkdir(parents=True, exist_ok=True)
    (folder / "proc/1/comm").write_text(f"{process}\n")
    defaults = {"default_runtime": {"containerd": "nvidia"}}
    return smoked(folder, {"runtimes": ["containerd"], "image": "a/b", "toolkit": False, **defaults})


@pytest.mark.parametrize("key", ["SystemdCgroup", "systemdCgroup"])
def test_a_pod_gets_a_slice_however_the_file_spells_the_systemd_driver(key: str, tmp_path: Path) -> None:
    """containerd takes both, and crictl info repeats what stands in the file: kubespray before 2.28 has the second."""
    fake_program(tmp_path, "ctr", "echo gpunode-smoke-ran")
    text = CRICTL.replace("LOSE", "0").replace("AT", "never").replace("FOLDER", str(tmp_path))
    text = text.replace(
        "runp)",
        f'info) echo \'{{"{key}": true}}\' ;;\n  runp) for last in "$@"; do :; done; cat "$last" >{tmp_path}/asked;',
        1,
    )
    info = '"info": {"BinaryName": "/usr/bin/nvidia-container-runtime"}'
    fake_program(tmp_path, "crictl", text.replace("INFO", info))
    smoked(tmp_path, {"runtimes": ["containerd"], "image": "a/b", "toolkit": False})
    assert '"cgroup_parent":"system.slice"' in (tmp_path / "asked").read_text()


def inside() -> str:
    """What the container's shell is given."""
    lines = [line for line in script("smoke.sh").splitlines() if line.startswith(("ASKED=", "INSIDE="))]
    done = subprocess.run(
        ["sh", "-c", "\n".join((*lines, 'printf %s "$INSIDE"'))], capture_output=True, text=True, check=True
    )
    return done.stdout


# an nvidia-smi: «list» or «query», what it prints, and its exit status
SMI = """
case $1 in -L) what=list ;; *) what=query ;; esac
cat "FOLDER/$what" 2>/dev/null
exit "$(cat "FOLDER/$what.status" 2>/dev/null || echo 0)"
"""
H100 = ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-98)", "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-7f)")
ANSWERS = ("0, 33, 0 %, 0 MiB", "1, [N/A], [N/A], 14 MiB")


def smi(folder: Path, *, listed: tuple[str, ...] = H100, answers: tuple[str, ...] = ANSWERS, rc: int = 0) -> None:
    fake_program(folder, "nvidia-smi", SMI.replace("FOLDER", str(folder)))
    (folder / "list").write_text("".join(f"{line}\n" for line in listed))
    (folder / "query").write_text("".join(f"{line}\n" for line in answers))
    (folder / "list.status").write_text(f"{rc}\n")
    (folder / "query.status").write_text(f"{rc}\n")


def said(folder: Path) -> list[str]:
    """What a container prints that has the programs of this folder."""
    done = subprocess.run(
        ["sh", "-c", inside()], env={"PATH": f"{folder}/bin:/bin"}, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return done.stdout.splitlines()


def judged(folder: Path, lines: list[str], **request: object) -> Check | None:
    """What smoke.sh says of the GPUs in a container that printed these lines."""
    (folder / "said").write_text("".join(f"{line}\n" for line in lines))
    fake_program(folder, "docker", f"case $1 in inspect) echo nvidia ;; start) cat {folder}/said ;; esac")
    smi_on_the_node = {"runtimes": ["docker"], "image": "a/b", "gpus": 2, "toolkit": False}
    found = smoked(folder, smi_on_the_node | request)
    assert found["docker.runtime"].status == "passed"
    return found.get("docker.runtime.gpus")


def test_a_container_says_that_it_ran_when_it_has_said_all(tmp_path: Path) -> None:
    """A kubelet kills it at any point: what it has printed by then must not count as a container without GPUs."""
    smi(tmp_path)
    assert said(tmp_path) == [*H100, "gpunode-smoke-list 0", *ANSWERS, "gpunode-smoke-query 0", "gpunode-smoke-ran"]


def test_a_container_whose_nvidia_smi_lists_and_asks_all_gpus_is_passed(tmp_path: Path) -> None:
    smi(tmp_path)
    check = judged(tmp_path, said(tmp_path))
    assert check and (check.status, check.message) == ("passed", "the container sees all 2 GPUs")


FILES = ["gpunode-smoke-device /dev/nvidia0", "gpunode-smoke-device /dev/nvidia1", "gpunode-smoke-ran"]
LOADER = "nvidia-smi: error while loading shared libraries: libpthread.so.0: cannot open shared object file"
LOST = "Unable to determine the device handle for GPU0000:17:00.0: GPU is lost.  Reboot the system to recover this GPU"
RESET = "0, [GPU requires reset], [GPU requires reset], 0 MiB"


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        # nvidia-smi could not start: its own words, and of the files no more than that they are there
        ([LOADER, "gpunode-smoke-list 127", LOADER, "gpunode-smoke-query 127", *FILES], "not-proven",
         ["exit status 127", LOADER, "device files of all 2 GPUs (/dev/nvidia0 /dev/nvidia1)"]),
        ([LOADER, "gpunode-smoke-list 127", LOADER, "gpunode-smoke-query 127", FILES[0], FILES[2]], "failed",
         [LOADER, "1 device files", "the node has 2"]),
        (FILES, "not-proven", ["no nvidia-smi is in the container", "no more than that they are there"]),
        (FILES[2:], "failed", ["no nvidia-smi is in the container", "no /dev/nvidiaN"]),
        # a GPU that is lost ends nvidia-smi, one that needs a reset does not
        ([LOST, "gpunode-smoke-list 15", LOST, "gpunode-smoke-query 15", *FILES], "failed", ["exit status 15", LOST]),
        ([*H100, "gpunode-smoke-list 0", RESET, ANSWERS[1], "gpunode-smoke-query 0", *FILES], "failed",
         ["cannot ask: GPU 0: GPU requires reset"]),
        ([*H100, "gpunode-smoke-list 0", RESET, "1, ERR!, 0 %, 0 MiB", "gpunode-smoke-query 0", *FILES], "failed",
         ["GPU 0: GPU requires reset, GPU 1: ERR!"]),
        ([*H100, "gpunode-smoke-list 0", ANSWERS[0], "1, [Unknown Error], 0 %, 0 MiB", "gpunode-smoke-query 0", *FILES],
         "failed", ["GPU 1: Unknown Error"]),
        ([*H100, "gpunode-smoke-list 0", ANSWERS[0], "gpunode-smoke-query 0", *FILES], "failed", ["exit status 0"]),
        ([*H100, "gpunode-smoke-list 0", "Terminated", "gpunode-smoke-query 143", *FILES], "failed",
         ["exit status 143", "Terminated"]),
        (["Failed to initialize NVML: Driver/library version mismatch", "NVML library version: 595.91",
          "gpunode-smoke-list 18", *FILES], "failed", ["mismatch NVML library version: 595.91"]),
        ([H100[0], "gpunode-smoke-list 0", ANSWERS[0], "gpunode-smoke-query 0", *FILES], "failed",
         ["sees 1 GPUs, the node has 2", H100[0]]),
    ],
)  # fmt: skip
def test_what_the_container_said_is_quoted_and_nothing_is_guessed(
    lines: list[str], status: str, words: list[str], tmp_path: Path
) -> None:
    check = judged(tmp_path, lines)
    assert check and check.status == status
    for word in words:
        assert word in check.message
    assert "is it the real one" not in check.fix


@pytest.mark.parametrize(
    ("config", "asks", "status"),
    [
        ("", "", "passed"),
        ("#accept-nvidia-visible-devices-envvar-when-unprivileged = true\n", "", "passed"),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
         "accept-nvidia-visible-devices-as-volume-mounts = true\n", "mount", "passed"),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged=false\n"
         "#accept-nvidia-visible-devices-as-volume-mounts = false\n[nvidia-container-cli]\n", "none", "not-proven"),
        ("[other]\naccept-nvidia-visible-devices-envvar-when-unprivileged = false\n", "", "passed"),
    ],
)  # fmt: skip
def test_gpus_are_asked_for_as_the_toolkit_s_configuration_takes_it(
    config: str, asks: str, status: str, tmp_path: Path
) -> None:
    """By mounts where it takes no variables of unprivileged containers; where it takes neither, that is the reason."""
    smi(tmp_path)
    (tmp_path / "config.toml").write_text(config)
    (tmp_path / "has").write_text("".join(f"{line}\n" for line in said(tmp_path)))
    mount = "/var/run/nvidia-container-devices/all"
    wanted = f'*"{mount}"*' if asks == "mount" else "*nothing*" if asks == "none" else "*NVIDIA_VISIBLE_DEVICES*"
    seen = f"case $(cat {tmp_path}/asked) in {wanted}) cat {tmp_path}/has ;; *) echo gpunode-smoke-ran ;; esac"
    by_docker = f'case $1 in create) echo "$*" >{tmp_path}/asked ;; inspect) echo nvidia ;; start) {seen} ;; esac'
    fake_program(tmp_path, "docker", by_docker.replace("/asked", "/asked-of-docker"))
    fake_program(
        tmp_path, "ctr", f'case "$*" in *" run "*) echo "$*" >{tmp_path}/asked; {seen} ;; esac; echo gpunode-smoke-ran'
    )
    crictl = CRICTL.replace("LOSE", "0").replace("AT", "never").replace("FOLDER", str(tmp_path))
    crictl = crictl.replace("create)", f'create) cat "$2" >{tmp_path}/asked;').replace(
        'echo "2026-11-22T10:00:00Z stdout F gpunode-smoke-ran"',
        f"{{ {seen}; }} | sed 's/^/2026-11-22T10:00:00Z stdout F /'",
    )
    fake_program(
        tmp_path, "crictl", crictl.replace("INFO", '"info": {"BinaryName": "/usr/bin/nvidia-container-runtime"}')
    )
    found = smoked(tmp_path, {"runtimes": ["containerd", "docker"], "image": "a/b", "gpus": 2, "toolkit": False})
    for one in ("containerd.binary", "containerd.cri-nvidia", "docker.runtime", "docker.gpus-all"):
        assert found[f"{one}.gpus"].status == status, found
    if asks == "none":
        assert "envvar-when-unprivileged = false" in found["docker.runtime.gpus"].message
    assert "docker (--runtime=nvidia, runtime nvidia)" in found["docker.runtime"].message


@pytest.mark.parametrize(
    ("answers", "rc", "words"),
    [
        ((RESET, ANSWERS[1]), 0, "cannot ask: GPU 0: GPU requires reset"),
        (("0, [GPU is lost], [GPU is lost], [GPU is lost]", ANSWERS[1]), 0, "GPU 0: GPU is lost"),
        (ANSWERS[:1], 0, "fails when it asks them"),
        (ANSWERS, 0, ""),
    ],
)
def test_a_gpu_of_the_node_that_cannot_be_asked_has_failed(
    answers: tuple[str, ...], rc: int, words: str, tmp_path: Path
) -> None:
    smi(tmp_path, answers=answers, rc=rc)
    check = smoked(tmp_path, {"gpus": 2})["driver.smi"]
    assert check.status == ("failed" if words else "passed")
    assert words in check.message


@pytest.mark.parametrize("at", ["created", "started", "torn", "dead", "inspected", "ran", "ended"])
@pytest.mark.parametrize("lose", [1, 5])
def test_a_pod_that_a_kubelet_removed_is_tried_again(at: str, lose: int, tmp_path: Path) -> None:
    found = a_node_whose_pods_go(tmp_path, lose=lose, at=at)
    assert {name: check.status for name, check in found.items()} == {
        "containerd.binary": "passed", "containerd.cri-nvidia": "passed", "containerd.cri-default": "passed"
    }  # fmt: skip
    uids = (tmp_path / "uids").read_text().split()
    assert len(uids) == len(set(uids)) == lose + 2, "each pod is one that the kubelet has not killed yet"
    assert (tmp_path / "removed").read_text().split() == [f"pod{n}" for n in range(1, lose + 3)]


@pytest.mark.parametrize("at", ["created", "started", "torn", "dead", "inspected", "ran", "ended"])
def test_a_kubelet_that_is_always_faster_leaves_it_not_proven_and_the_node_in_use(at: str, tmp_path: Path) -> None:
    found = a_node_whose_pods_go(tmp_path, lose=1000, at=at)
    for one in ("containerd.cri-nvidia", "containerd.cri-default"):
        assert found[one].status == "not-proven"
        assert "removed 6 times" in found[one].message
        assert "gpunode kube verify" in found[one].fix
    assert not [check for check in found.values() if check.status == "failed"]
    assert len((tmp_path / "uids").read_text().split()) == 12


@pytest.mark.parametrize("process", ["k3s-server", "kubelite"])
def test_the_kubelet_may_be_a_part_of_another_program(process: str, tmp_path: Path) -> None:
    found = a_node_whose_pods_go(tmp_path, lose=1000, at="ended", process=process)
    assert found["containerd.cri-nvidia"].status == "not-proven"


def test_without_a_kubelet_a_pod_that_ended_by_itself_has_failed(tmp_path: Path) -> None:
    found = a_node_whose_pods_go(tmp_path, lose=1000, at="ended", process="sshd")
    assert found["containerd.cri-nvidia"].status == "failed"
    assert "exit status 137" in found["containerd.cri-nvidia"].message


def test_next_to_a_kubelet_a_runtime_that_fails_is_failed_at_once(tmp_path: Path) -> None:
    found = a_node_whose_pods_go(tmp_path, lose=0, at="broken")
    assert found["containerd.cri-nvidia"].status == "failed"
    assert found["containerd.cri-nvidia"].message.endswith("nvidia-container-cli: initialization error")
    assert len((tmp_path / "uids").read_text().split()) == 2


def test_a_container_that_runs_is_asked_again_soon(tmp_path: Path) -> None:
    """Each second here is one of every provision."""
    a_node_whose_pods_go(tmp_path, lose=0, at="runs", waits=f'echo "$1" >>{tmp_path}/slept')
    assert set((tmp_path / "slept").read_text().split()) == {"0.3"}


def test_engines_are_asked_side_by_side_and_answer_in_order(tmp_path: Path) -> None:
    """Each waits for the other one to have begun."""
    meet = "touch {0}/{1}; for _ in 1 2 3 4 5 6 7 8 9; do [ ! -e {0}/{2} ] || break; sleep 0.5; done; "
    meet += "[ -e {0}/{2} ] || exit 1"
    asks = {"docker": ("$1", "start", "ctr"), "ctr": ("$*", '*" run "*', "docker")}
    for name, (words, verb, other) in asks.items():
        met = meet.format(tmp_path, name, other)
        fake_program(tmp_path, name, f'case "{words}" in {verb}) {met}; esac; echo gpunode-smoke-ran')
    found = smoked(tmp_path, {"runtimes": ["containerd", "docker"], "image": "a/b", "gpus": 1})
    ran = [name for name in found if name in ("containerd.binary", "docker.gpus-all")]
    assert ran == ["containerd.binary", "docker.gpus-all"]
    assert {found[name].status for name in ran} == {"passed"}


def test_an_engine_whose_checks_were_killed_is_not_passed_over(tmp_path: Path) -> None:
    asked, shell = '*"docker image inspect"*', "$(cut -d ' ' -f 4 /proc/$PPID/stat)"
    fake_program(tmp_path, "timeout", f'case "$*" in {asked}) kill -KILL "{shell}" ;; esac')
    fake_program(tmp_path, "docker", "")
    found = smoked(tmp_path, {"runtimes": ["docker"], "image": "a/b"})
    assert found["smoke.ran"].status == "failed" and "docker" in found["smoke.ran"].message


def test_who_is_ended_takes_nothing_up_any_more_and_cleans_up_last(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fake_program(tmp_path, "docker", f"echo $1 >>{log}; [ $1 != create ] || sleep 1; echo $1 >>{log}")
    text = program(node_program(tmp_path), smoke_files({"runtimes": ["docker"], "image": "a/b"}))
    path = {"PATH": f"{tmp_path}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    with subprocess.Popen(["sh", "-s"], stdin=subprocess.PIPE, text=True, env=path, start_new_session=True) as process:
        assert process.stdin
        process.stdin.write(text)
        process.stdin.close()
        while "create" not in (log.read_text() if log.exists() else ""):
            assert process.poll() is None, "it ended without a container"
            time.sleep(0.05)
        [script_of_it] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(script_of_it), signal.SIGTERM)
    assert "start" not in log.read_text().split()
    assert log.read_text().split()[-2:] == ["rmi", "rmi"]


def fake_program(folder: Path, name: str, text: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / "bin" / name).chmod(0o755)


def smoked(folder: Path, request: dict[str, object], **env: str) -> dict[str, Check]:
    done = subprocess.run(
        ["sh"],
        input=program(node_program(folder), smoke_files(request)),
        env={"PATH": f"{folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return {check.id: check for check in parse_checks(done.stdout, done.returncode)}


def node_program(folder: Path) -> str:
    text = script("smoke.sh").replace("/sys/module/nvidia", str(folder / "module"))
    text = text.replace("/etc/nvidia-container-runtime/config.toml", str(folder / "config.toml"))
    text = text.replace("/usr/local/cuda*/extras/demo_suite", f"{folder}/bin")
    return text.replace("/proc/[0-9]", f"{folder}/proc/[0-9]")


@pytest.mark.parametrize("runtime", ["runc", "nvidia"])
def test_a_container_of_the_runtime_runc_is_not_asked_for_gpus(runtime: str, tmp_path: Path) -> None:
    body = f"case $1 in inspect) echo {runtime} ;; start) echo gpunode-smoke-ran ;; esac"
    fake_program(tmp_path, "docker", body)
    found = smoked(tmp_path, {"runtimes": ["docker"], "image": "a/b", "gpus": 1})
    assert found["docker.default"].status == found["docker.gpus-all"].status == "passed"
    assert ("docker.default.gpus" in found) == (runtime == "nvidia")
    assert "docker.gpus-all.gpus" in found
