"""dnf.sh, zypper.sh and pacman.sh: what they read out of package managers that are faked.  Under three shells."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpunode.node import part

SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]

# as dnf 4.14 prints it; a name that is too long for its column stands in a line of its own
DNF = """\
Last metadata expiration check: 0:59:47 ago on Sat Nov 21 08:11:34 2026.
================================================================================
 Package                 Arch   Version              Repository            Size
================================================================================
Installing:
 nvidia-open             noarch 3:580.95.05-1.el9    gpunode-nvidia-cuda  6.1 k
Installing dependencies:
 kmod-nvidia-open-dkms-with-a-long-name
                         noarch 3:580.95.05-1.el9    gpunode-nvidia-cuda  6.1 k
Removing:
 cuda-drivers            noarch 3:580.178.04-1.el9   @gpunode-nvidia-cuda  11
Downgrading:
 nvidia-driver           noarch 3:580.95.05-1.el9    gpunode-nvidia-cuda  6.0 k

Transaction Summary
================================================================================
Install    2 Packages
Remove     1 Package
Downgrade  1 Package

Total download size: 18 M
Installed size: 2 G
Error: Operation aborted.
"""
# as dnf 5.4 prints it
DNF5 = """\
Updating and loading repositories:
Repositories loaded.
Package                              Arch   Version            Repository      Size
Removing:
 cuda-drivers                        x86_64 3:580.95.05-1.fc43 cuda        31.0   B
Upgrading:
 nvidia-driver                       x86_64 3:595.91.07-1.fc43 cuda        31.0   B
   replacing nvidia-driver           x86_64 3:580.95.05-1.fc43 cuda        31.0   B
   replacing nvidia-driver-old       x86_64 3:580.95.05-1.fc43 cuda        31.0   B
Installing dependencies:
 nvidia-persistenced                 x86_64 3:595.91.07-1.fc43 cuda       969.0   B

Transaction Summary:
 Installing:         1 package
 Upgrading:          1 package
 Removing:           1 package

Total size of inbound packages is 3 MiB. Need to download 2 MiB.
After this operation, 1 GiB extra will be used (install 2 GiB, remove 1 GiB).
Operation aborted by the user.
"""
VERSIONLOCK = """\
version = "1.0"

[[packages]]
name = "nvidia-open"
comment = "Added by 'versionlock add' command"

[[packages.conditions]]
key = "evr"
comparator = "="
value = "3:580.95.05-1.fc43"

[[packages]]
name = "acpi"
[[packages.conditions]]
key = "evr"
comparator = "<"
value = "4"
"""
ZYPPER = """\
<?xml version='1.0'?>
<stream>
<message type="info">Resolving package dependencies...</message>
<install-summary download-size="18432" space-usage-diff="4096" packages-to-change="3">
<to-upgrade>
<solvable type="package" name="nvidia-open" edition="595.91.07-1" arch="x86_64" edition-old="580.95.05-1"/>
</to-upgrade>
<to-install>
<solvable type="package" name="nvidia-compute-G07" edition="595.91.07-1" arch="x86_64"/>
</to-install>
<to-remove>
<solvable type="package" name="nvidia-compute-G06" edition="580.95.05-1" arch="x86_64"/>
</to-remove>
</install-summary>
</stream>
"""
RPM = """\
package kernel-devel 5.14.0-427.13.1.el9_4 x86_64
package glibc 2.34-100.el9 i686
package gpg-pubkey b514ad42-6b01586d (none)
package nvidia-open 580.95.05-1.el9 noarch"""


class Manager:
    """The file of one package manager, its request, and fake commands before PATH."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.folder, self.shell = folder, shell
        (folder / "in").mkdir()
        (folder / "bin").mkdir()
        self.fake("uname", "echo x86_64")
        self.ask("to_remove", "")

    def fake(self, name: str, body: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def prints(self, name: str, text: str) -> None:
        (self.folder / f"{name}.txt").write_text(text)
        self.fake(name, f"cat {self.folder}/{name}.txt")

    def ask(self, name: str, text: str) -> None:
        hidden = "." if name == "to_remove" else ""
        (self.folder / "in" / f"{hidden}{name}").write_text(text)

    def run(self, name: str, command: str) -> list[str]:
        text = "".join(part(n).read_text() for n in ("base.sh", "common.sh", f"{name}.sh"))
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            [*self.shell, "-s"],
            input=f"{text}\n{command}\n",
            text=True,
            capture_output=True,
            env=os.environ | {"PATH": path, "GPUNODE_IN": str(self.folder / "in"), "LC_ALL": "C"},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Manager:
    return Manager(tmp_path, list(request.param))


def test_dnf_says_what_a_transaction_would_do_without_epochs_and_with_folded_rows(manager: Manager) -> None:
    manager.ask("install", "nvidia-open 580.95* hold\n")
    manager.ask("to_remove", "cuda-drivers\n")
    manager.prints("dnf", DNF)
    assert manager.run("dnf", "dnf_simulate; dnf_needs") == [
        "install nvidia-open 580.95.05-1.el9",
        "install kmod-nvidia-open-dkms-with-a-long-name 580.95.05-1.el9",
        "remove cuda-drivers",
        "install nvidia-driver 580.95.05-1.el9",
        f"{18 * 1024} {2 * 1024 * 1024}",
    ]
    assert (manager.folder / "in/.shell").read_text() == "install nvidia-open-580.95*\nremove cuda-drivers\nrun\n"


SWITCHED = DNF.replace(
    "\nTransaction Summary",
    "Switching module streams:\n nvidia-driver                          580-open -> 595-open\n\nTransaction Summary",
)


def test_check_mode_asks_dnf_for_a_stream_that_is_not_enabled_and_enables_none(manager: Manager) -> None:
    manager.ask("check", "1\n")
    manager.ask("streams", "nvidia-driver 595-open\n")
    manager.ask("install", "nvidia-open - -\n")
    manager.prints("dnf", SWITCHED)
    assert "install nvidia-driver ->" not in manager.run("dnf", "dnf_simulate")
    asked = "module enable nvidia-driver:595-open\ninstall nvidia-open\nrun\n"
    assert (manager.folder / "in/.shell").read_text() == asked
    (manager.folder / "in/check").unlink()
    manager.run("dnf", "dnf_simulate")
    assert "module" not in (manager.folder / "in/.shell").read_text(), "a run enables it before"


DPKG = """\
Preparing to unpack .../10-nvidia-kernel-dkms_580.95.05-1_amd64.deb ...
dpkg: error processing archive /tmp/10-nvidia-kernel-dkms_580.95.05-1_amd64.deb (--unpack):
 cannot copy extracted data for './usr/src/x.c' to '/usr/src/x.c.dpkg-new': failed to write (No space left on device)
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
RPM_FULL = """\
Running transaction test
Error: Transaction test error:
  installing package kmod-nvidia-open-dkms-3:580.95.05-1.el9.x86_64 needs 12KB more space on the /usr/src filesystem

Error Summary
"""


@pytest.mark.parametrize(
    ("name", "file", "text", "says"),
    [
        ("apt", ".log", DPKG, "(--unpack): cannot copy extracted data"),
        ("apt", ".log", "E: Unable to fetch some archives\nE: next\n", "E: Unable to fetch some archives"),
        ("dnf", ".transaction", RPM_FULL, "Error: Transaction test error: installing package kmod-nvidia-open-dkms"),
        ("dnf", ".transaction", "Failed to resolve the transaction:\nNo match: x\n", "transaction: No match: x"),
        ("zypper", ".transaction", "(1/2) x [error]\nSubprocess failed. Error: RPM failed: y\n", "(1/2) x [error]"),
    ],
)
def test_what_a_package_manager_says_of_a_failure_is_more_than_a_heading(
    manager: Manager, name: str, file: str, text: str, says: str
) -> None:
    (manager.folder / "in" / file).write_text(text)
    [printed] = manager.run(name, f"log=$GPUNODE_IN/.log; {name}_printed")
    assert says in printed


def dnf5(manager: Manager, text: str) -> None:
    manager.prints("dnf5", text)
    (manager.folder / "bin/dnf").symlink_to("dnf5")


def test_dnf5_says_what_a_transaction_would_do(manager: Manager) -> None:
    dnf5(manager, DNF5)
    assert manager.run("dnf", "dnf_simulate; dnf_needs") == [
        "remove cuda-drivers",
        "install nvidia-driver 595.91.07-1.fc43",
        "remove nvidia-driver-old",
        "install nvidia-persistenced 595.91.07-1.fc43",
        f"{2 * 1024} {2 * 1024 * 1024}",
    ]


def test_dnf5_gets_the_whole_transaction_in_one_call(manager: Manager) -> None:
    manager.ask("install", "nvidia-open 595.91* hold\nkernel-devel - -\n")
    manager.ask("to_remove", "cuda-drivers\n")
    manager.fake("dnf5", 'echo "Problem: $*"')
    (manager.folder / "bin/dnf").symlink_to("dnf5")
    [output] = manager.run("dnf", "dnf_simulate || dnf_why_not")
    assert output.partition(" do ")[2].split() == [
        "--assumeno",
        "--action=install",
        "nvidia-open-595.91*",
        "--action=install",
        "kernel-devel",
        "--action=remove",
        "cuda-drivers",
    ]
    assert "--setopt=disable_excludes=*" in output


@pytest.mark.parametrize("text", ["No match for argument: x-9", "Argument 'x-9' matches only packages excluded"])
def test_dnf5_cannot_do_what_does_not_resolve_and_says_why(manager: Manager, text: str) -> None:
    dnf5(manager, f"Repositories loaded.\nFailed to resolve the transaction:\n{text}\n")
    assert manager.run("dnf", "dnf_simulate || dnf_why_not") == [f"{text} "]


def test_a_lock_of_dnf5_on_a_version_holds_that_package(manager: Manager) -> None:
    (manager.folder / "versionlock.toml").write_text(VERSIONLOCK)
    text = part("dnf.sh").read_text()
    locks = text[text.index("dnf_locks() {") : text.index("dnf_holder() {")]
    locks = locks.replace("/etc/dnf/versionlock.toml", str(manager.folder / "versionlock.toml"))
    assert manager.run("dnf", f"{locks}\ndnf_locks") == ["nvidia-open 580.95.05-1.fc43"]


@pytest.mark.parametrize(
    ("program", "unfiltered"), [("dnf", "--showduplicates --disable-modular-filtering"), ("dnf5", "module_hotfixes=1")]
)
def test_a_version_in_a_stream_that_is_not_enabled_is_there_to_go_back_to(
    manager: Manager, program: str, unfiltered: str
) -> None:
    """dnf hides what is in it, unless it is told not to; each of the two generations knows its own way alone."""
    rows = ("nvidia-driver 595.91.07-1.el9", "nvidia-driver 580.178.04-1.el9")
    manager.fake(program, f'echo {rows[0]}; case "$*" in *"{unfiltered}"*" nvidia-driver") echo {rows[1]} ;; esac')
    if program != "dnf":
        (manager.folder / "bin/dnf").symlink_to(program)
    text = f"{part('undo_packages.sh').read_text()}\ndnf_options\ndnf_available nvidia-driver"
    assert manager.run("dnf", text) == [*rows]


def test_dnf_cannot_do_what_ends_in_a_problem_and_says_why(manager: Manager) -> None:
    manager.prints("dnf", "Error: \n Problem: package a requires b\nError: Operation aborted.\n")
    assert manager.run("dnf", "dnf_simulate || dnf_why_not") == [" Problem: package a requires b "]


def test_removals_that_make_room_for_another_version_are_none(manager: Manager) -> None:
    manager.prints("dnf", DNF.replace("cuda-drivers ", "nvidia-open  "))
    assert not [line for line in manager.run("dnf", "dnf_simulate") if line.startswith("remove")]


def test_packages_of_rpm_stand_by_name_and_kernels_by_version_too(manager: Manager) -> None:
    manager.prints("rpm", RPM)
    assert manager.run("dnf", "dnf_installed") == [
        "kernel-devel 5.14.0-427.13.1.el9_4 -",
        "kernel-devel-5.14.0-427.13.1.el9_4.x86_64 5.14.0-427.13.1.el9_4 -",
        "glibc.i686 2.34-100.el9 -",
        "nvidia-open 580.95.05-1.el9 -",
    ]


def test_zypper_says_what_a_transaction_would_do(manager: Manager) -> None:
    manager.prints("zypper", ZYPPER)
    assert manager.run("zypper", "zypper_simulate; zypper_needs") == [
        "install nvidia-open 595.91.07-1",
        "install nvidia-compute-G07 595.91.07-1",
        "remove nvidia-compute-G06",
        "18 4",
    ]


def test_zypper_is_asked_for_the_newest_edition_that_fits_a_pattern(manager: Manager) -> None:
    rows = "".join(
        f'<solvable status="not-installed" name="nvidia-open" kind="package" edition="{edition}" arch="x86_64"/>\n'
        for edition in ("580.95.05-1", "595.91.07-1", "580.178.04-1")
    )
    manager.prints("zypper", rows)
    manager.ask("install", "nvidia-open 580.* hold\nmake - -\n")
    manager.ask("to_remove", "cuda-drivers\n")
    assert manager.run("zypper", "zypper_words") == ["nvidia-open=580.178.04-1", "make", "-cuda-drivers"]


def test_a_package_that_pacman_would_put_out_is_named(manager: Manager) -> None:
    manager.ask("install", "nvidia-open-dkms - -\n")
    new = "Name            : nvidia-open-dkms\nProvides        : NVIDIA-MODULE\nConflicts With  : NVIDIA-MODULE\n"
    old = new.replace("nvidia-open-dkms", "nvidia-open")
    (manager.folder / "new").write_text(new)
    (manager.folder / "old").write_text(old)
    answers = (
        '*" --print "*) echo install nvidia-open-dkms 595.91.07-1',
        f'*" -Si "*) cat {manager.folder}/new',
        f'*" -Qi "*) cat {manager.folder}/old',
    )
    manager.fake("pacman", f'case " $* " in {" ;; ".join(answers)} ;; esac')
    assert manager.run("pacman", "pacman_simulate") == [
        "install nvidia-open-dkms 595.91.07-1",
        "remove nvidia-open",
    ]


@pytest.mark.parametrize(
    ("name", "command", "reported"),
    [
        ("apt", "apt_update", 'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{sources}";'),
        ("dnf", "dnf_ makecache", "reposdir={sources}"),
        ("zypper", "zypper_ refresh", "--reposd-dir={sources} --non-interactive refresh"),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_where_a_bundle_stands_for_all_no_other_repository_is_asked(
    manager: Manager, name: str, command: str, reported: str, alone: bool
) -> None:
    """The configuration that the package manager gets, with a folder of these sources and of no others."""
    source = manager.folder / "gpunode-distribution.repo"
    source.write_text("[gpunode-distribution]\n")
    manager.ask("refresh", f"{source}\n")
    if alone:
        manager.ask("alone", "1\n")
    for program in ("apt-get", "dnf", "zypper"):
        manager.fake(program, 'echo "$@"; [ "$1" != -c ] || cat "$2"')
    command = f"{packages_sh()}\n{name}_options\n{command.replace('apt_update', 'apt_ update')}"
    output = "\n".join(manager.run(name, command))
    folder = manager.folder / "in/.sources"
    assert (reported.format(sources=folder) in output) is alone
    asked_for = alone or name == "apt"  # which asks for the lists of the request's sources
    assert [path.name for path in folder.glob("*")] == ([source.name] if asked_for else [])


def packages_sh() -> str:
    """Its functions, without what runs them."""
    functions, _, main = part("packages.sh").read_text().rstrip().rpartition("\n")
    assert main == "main"
    return functions


def test_pacman_keeps_the_kernel_along_with_modules_that_are_built_for_it(manager: Manager) -> None:
    assert manager.run("pacman", "pacman_kept nvidia-utils nvidia-open") == ["nvidia-utils", "nvidia-open", "linux"]
