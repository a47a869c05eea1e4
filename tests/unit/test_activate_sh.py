"""activate.sh exchanges a driver: in namespaces where /sys/module, modprobe and modinfo are the test's own."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.items.activation import activate_request
from gpunode.core.model import Changed, Outcome
from gpunode.core.remote import parse_outcome, program
from gpunode.node import script

# modules with what each needs; the version that is installed, and modules that it lacks, are files
MODPROBE = """#!/bin/sh
needs() { case $1 in nvidia) ;; nvidia_drm) echo nvidia_modeset ;; *) echo nvidia ;; esac; }
if [ "$1" = -r ]; then
  [ ! -e "$NODE/stuck" ] || exit 0 # as with Canonical's «alias nouveau off»
  [ -z "$(ls "/sys/module/$2/holders")" ] || { echo "modprobe: FATAL: Module $2 is in use." >&2; exit 1; }
  rm -r "/sys/module/$2"
  need=$(needs "$2")
  [ -z "$need" ] || rm "/sys/module/$need/holders/$2"
  [ "$need" != nvidia_modeset ] || "$0" -r nvidia_modeset # what nothing else needs goes along
  exit
fi
[ ! -d "/sys/module/$1" ] || exit 0
! grep -qx "$1" "$NODE/lacks" || { echo "modprobe: FATAL: Module $1 not found." >&2; exit 1; }
need=$(needs "$1")
[ -z "$need" ] || { "$0" "$need" && ln -s . "/sys/module/$need/holders/$1"; } || exit 1
mkdir -p "/sys/module/$1/holders" && cp "$NODE/installed" "/sys/module/$1/version"
"""
MODINFO = '#!/bin/sh\n[ "$1" != -F ] || exit 0\n! grep -qx "$1" "$NODE/lacks"\n'
INSIDE = """
mount --bind "$NODE/module" /sys/module || exit 99
for name in $LOADED; do modprobe "$name"; done
echo 580.178.04 >"$NODE/installed"
sh -s
status=$?
echo "left $(ls /sys/module | tr '\\n' ' ')$(cat /sys/module/nvidia/version)"
exit $status
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, text in {"modprobe": MODPROBE, "modinfo": MODINFO}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "module").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "installed").write_text("580.95.05\n")
    (tmp_path / "lacks").write_text("")
    return tmp_path


def activate(node: Path, loaded: str) -> tuple[Outcome, str]:
    """What the script said, and the modules and version that it left; `loaded` were there in version 580.95.05."""
    return run(node, loaded, activate_request({"load": ["nvidia"], "version": "580.178.04"}))


def list_dry_run(node: Path, value: dict[str, Any], before: list[Changed]) -> Outcome:
    """What check mode says, after steps that would have changed what `before` says; it changes nothing itself."""
    loaded = "nvidia_uvm nvidia_drm"
    outcome, left = run(node, loaded, activate_request({"load": ["nvidia"], **value}, check=True, after=before))
    assert left == "nvidia nvidia_drm nvidia_modeset nvidia_uvm 580.95.05"
    assert not (node / "state/journal.jsonl").exists()
    return outcome


def run(node: Path, loaded: str, request: dict[str, bytes]) -> tuple[Outcome, str]:
    (node / "boot").mkdir(exist_ok=True)
    done = subprocess.run(
        ["unshare", "-m", "-p", "-f", "--mount-proc", "sh", "-c", INSIDE],
        input=program(
            own_paths(node, script("activate.sh")),
            request | {"state": f"{node}/state\n".encode()},
        ),
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": f"{node}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "NODE": str(node), "LOADED": loaded},
    )
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("no mount namespaces here")
    printed, _, left = done.stdout.rpartition("left ")
    return parse_outcome(printed, done.returncode), left.strip()


def own_paths(node: Path, text: str) -> str:
    folders = {"/boot/": "boot/", "/usr/local/": "local/", "/dev/nvidia": "dev/nvidia", "/dev/char": "dev/char"}
    for path, own in {**folders, "/proc/driver/nvidia/gpus": "gpus"}.items():
        text = text.replace(path, f"{node}/{own}")
    return text


def journal(node: Path) -> list[tuple[str, str, str]]:
    records = [json.loads(line) for line in (node / "state/journal.jsonl").read_text().splitlines()]
    return [(r["name"], r["from"], r["to"]) for r in records if r["op"] == "state"]


@pytest.mark.parametrize("loaded", ["nvidia", "nvidia nvidia_uvm", "nvidia_uvm nvidia_drm nvidia_fs"])
def test_all_that_was_loaded_upon_the_old_driver_is_loaded_upon_the_new_one(node: Path, loaded: str) -> None:
    outcome, left = activate(node, loaded)
    modules = sorted({"nvidia", *loaded.split(), *(["nvidia_modeset"] if "drm" in loaded else [])})
    assert (outcome.status, left) == ("changed", f"{' '.join(modules)} 580.178.04"), outcome
    first = {name: before for name, before, _ in reversed(journal(node))}
    assert first == dict.fromkeys(modules, "loaded"), "the journal says that they were loaded before"


@pytest.mark.parametrize(("printed", "reason"), [("", ""), ("rmmod: ERROR: busy", ": rmmod: ERROR: busy")])
def test_the_reason_for_a_reboot_quotes_what_the_failed_command_prints_alone(
    node: Path, printed: str, reason: str
) -> None:
    (node / "stuck").write_text("")
    (node / "bin/rmmod").write_text(f"#!/bin/sh\nprintf '{printed}' >&2\nexit 1\n")
    (node / "bin/rmmod").chmod(0o755)
    (node / "boot").mkdir()
    (node / "boot/vmlinuz-1").write_text("")
    (node / "bin/update-initramfs").write_text("#!/bin/sh\necho a foreign line\n")
    (node / "bin/update-initramfs").chmod(0o755)
    outcome, _ = run(node, "nvidia nouveau", activate_request({"initramfs": True, "unload": ["nouveau"]}))
    assert "a foreign line" in outcome.log
    assert outcome.message == f"reboot needed: nouveau is in use and cannot be unloaded{reason}"


def test_what_is_in_force_is_named(node: Path) -> None:
    value = {"load": ["nvidia", "nvidia_uvm"], "unload": ["nouveau"], "version": "580.95.05"}
    outcome, _ = run(node, "nvidia nvidia_uvm", activate_request(value))
    assert (outcome.status, outcome.message) == (
        "unchanged",
        "nvidia 580.95.05, nvidia_uvm loaded; nouveau not loaded",
    )
    outcome, _ = run(node, "nvidia", activate_request({**value, "version": "580.178.04"}))
    assert outcome.message == "nvidia 580.178.04, nvidia_uvm loaded; nouveau not loaded"
    host = Path("/proc/sys/kernel/hostname").read_text().strip()
    value = {"sysctl": {"kernel.hostname": host}, "alternatives": {"nowhere": f"{node}/gone"}}
    outcome, _ = run(node, "", activate_request(value, check=True))
    assert outcome.message == f"kernel.hostname = {host}"


# to systemd the start of a unit that forks succeeds when its first process has ended, whatever became of the rest
SYSTEMCTL = """#!/bin/sh
case $1$2 in
  is-enabled*) echo enabled ;;
  is-active-q) grep -qx active "$NODE/state_of_$3" ;;
  is-active*) cat "$NODE/state_of_$2" ;;
  reset-failed*) rm -f "$NODE/too_often" ;;
  start* | restart*) [ ! -e "$NODE/too_often" ] && cp "$NODE/then" "$NODE/state_of_$2" ;;
esac
"""


@pytest.mark.parametrize(
    ("verb", "then", "status", "message"),
    [
        ("start", "active", "changed", "nvidia-imex.service running"),
        ("start", "activating", "changed", "nvidia-imex.service running"),
        ("start", "inactive", "failed", "nvidia-imex.service does not start"),
        ("start", "failed", "failed", "nvidia-imex.service does not start"),
        ("restart", "active", "changed", "nvidia-imex.service restarted"),
        ("restart", "inactive", "failed", "nvidia-imex.service does not restart"),
    ],
)
def test_a_unit_that_has_started_and_ended_does_not_run(
    node: Path, verb: str, then: str, status: str, message: str
) -> None:
    (node / "bin/systemctl").write_text(SYSTEMCTL)
    (node / "bin/systemctl").chmod(0o755)
    (node / "then").write_text(then + "\n")
    (node / "state_of_nvidia-imex.service").write_text("inactive\n" if verb == "start" else "active\n")
    key = "services" if verb == "start" else "restart"
    outcome, _ = run(node, "", activate_request({key: ["nvidia-imex.service"]}))
    assert (outcome.status, outcome.message) == (status, message), outcome


def test_a_unit_that_has_failed_too_often_is_started(node: Path) -> None:
    (node / "bin/systemctl").write_text(SYSTEMCTL)
    (node / "bin/systemctl").chmod(0o755)
    (node / "then").write_text("active\n")
    (node / "too_often").touch()
    (node / "state_of_docker.service").write_text("failed\n")
    outcome, _ = run(node, "", activate_request({"services": ["docker.service"]}))
    assert (outcome.status, outcome.message) == ("changed", "docker.service running"), outcome


def test_a_module_that_the_new_driver_lacks_is_named(node: Path) -> None:
    (node / "lacks").write_text("nvidia_fs\n")
    (node / "module/nvidia_fs/holders").mkdir(parents=True)
    (node / "module/nvidia/holders").mkdir(parents=True)
    (node / "module/nvidia/version").write_text("580.95.05\n")
    (node / "module/nvidia/holders/nvidia_fs").symlink_to(".")
    outcome, left = activate(node, "nvidia_uvm")
    assert (outcome.status, left) == ("changed", "nvidia nvidia_uvm 580.178.04"), outcome
    assert outcome.notes == ("nvidia_fs was loaded, and the driver that is installed now has none",)


@pytest.mark.parametrize(
    ("value", "before", "exchanged"),
    [
        ({}, [], False),
        ({}, [("nvtop", "", "1"), ("dkms", "2.8-1", "3.0-1"), ("nvidia-open", "", "")], False),
        ({}, [("nvidia-open", "3:580.95.05-1.el9", "3:595.91.07-1.el9")], True),
        ({}, [("nvidia-open", "580.95.05", "595.91.07")], True),
        ({}, [("nvidia-open", "580.95.051-1", "595.91.07")], False),
        ({"flavour": "proprietary"}, [("kmod-nvidia", "", "")], True),
        ({"version": "580.178.04"}, [], True),
    ],
)
def test_check_mode_names_the_modules_that_packages_still_to_come_exchange(
    value: dict[str, Any], before: list[tuple[str, str, str]], exchanged: bool, node: Path
) -> None:
    changes = [Changed(kind="package", name=name, was=was, now=now) for name, was, now in before]
    outcome = list_dry_run(node, value, changes)
    modules = ["nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia"]
    printed = sorted(f"{verb} {module}" for module in modules for verb in ("unload", "load")) if exchanged else []
    assert sorted(outcome.texts) == printed


@pytest.mark.parametrize(
    ("before", "stale"),
    [
        ("/etc/modprobe.d/gpunode-nouveau.conf", ("rebuild the initramfs of 6.1.0-1 6.1.0-2",)),
        ("/etc/modprobe.d/gpunode-nvidia.conf", ("rebuild the initramfs of 6.1.0-1 6.1.0-2",)),
        ("/etc/apt/preferences.d/gpunode-nvidia-driver", ("rebuild the initramfs of 6.1.0-2",)),
    ],
)
def test_check_mode_knows_an_initramfs_that_files_still_to_come_make_stale(
    before: str, stale: tuple[str, ...], node: Path
) -> None:
    (node / "boot").mkdir()
    for release in ("6.1.0-1", "6.1.0-2"):
        (node / f"boot/vmlinuz-{release}").touch()
    (node / "boot/initrd.img-6.1.0-1").touch()
    (node / "boot/vmlinuz").symlink_to("vmlinuz-6.1.0-2")  # as Ubuntu has it
    assert list_dry_run(node, {"initramfs": True}, [Changed(kind="file", name=before)]).texts == stale


@pytest.mark.parametrize(
    ("there", "link", "printed"),
    [
        ((), "", ()),  # the toolkit that is still to come brings the link
        (("13.0",), "13.0", ("{0}/cuda leads to {0}/cuda-12.8",)),
        (("12.8", "13.0"), "13.0", ("{0}/cuda leads to {0}/cuda-12.8",)),
        (("12.8",), "", ("{0}/cuda leads to {0}/cuda-12.8",)),
        (("12.8",), "12.8", ()),
    ],
)
def test_check_mode_says_where_the_link_to_cuda_will_lead_unless_a_package_brings_it(
    there: tuple[str, ...], link: str, printed: tuple[str, ...], node: Path
) -> None:
    local = node / "local"
    for version in there:
        (local / f"cuda-{version}").mkdir(parents=True)
    if link:
        (local / "cuda").symlink_to(local / f"cuda-{link}")
    outcome = list_dry_run(node, {"alternatives": {"cuda": f"{local}/cuda-12.8"}}, [])
    assert outcome.texts == tuple(line.format(local) for line in printed)


@pytest.mark.parametrize("there", [["nvidiactl"], [], ["nvidiactl", "nvidia0"], ["nvidiactl", "nvidia0", "nvidia1"]])
def test_gpus_without_device_files_get_them_before_they_are_linked(node: Path, there: list[str]) -> None:
    """nvidia-smi leaves /dev/nvidiactl behind without a driver, too: that file says nothing of the GPUs' own."""
    numbers = {"nvidiactl": 255, "nvidia0": 0, "nvidia1": 1}
    (node / "dev").mkdir()
    for minor, slot in enumerate(("0000:17:00.0", "0000:1e:00.0")):
        (node / "gpus" / slot).mkdir(parents=True)
        (node / "gpus" / slot / "information").write_text(f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\n")
    for name in there:
        try:
            os.mknod(node / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(195, numbers[name]))
        except PermissionError:
            pytest.skip("no device files can be made here")
    make = "\n".join(f"[ -e {node}/dev/{name} ] || mknod {node}/dev/{name} c 195 {n}" for name, n in numbers.items())
    (node / "bin/nvidia-smi").write_text(f"#!/bin/sh\necho asked >>{node}/asked\n{make}\n")
    (node / "bin/nvidia-smi").chmod(0o755)
    outcome, _ = run(node, "nvidia", activate_request({"links": True}))
    assert set(outcome.texts) == {f"link {node}/dev/char/195:{n} to {node}/dev/{name}" for name, n in numbers.items()}
    assert (node / "asked").exists() == (len(there) < 3)


def test_the_cause_of_a_refused_module_is_the_first_thing_that_modprobe_says(node: Path) -> None:
    """As on Debian 13, where nvidia is an install command that loads nvidia-current."""
    said = (
        "modprobe: ERROR: could not insert 'nvidia_current': Key was rejected by service",
        "modprobe: ERROR: Error running install command 'modprobe -i nvidia-current ' for module nvidia: retcode 1",
        "modprobe: ERROR: could not insert 'nvidia': Invalid argument",
    )
    (node / "bin/modprobe").write_text("#!/bin/sh\ncat >&2 <<'END'\n" + "\n".join(said) + "\nEND\nexit 1\n")
    outcome, _ = activate(node, "")
    assert f"Secure Boot rejects the module nvidia: {said[0]}" in str(outcome)
