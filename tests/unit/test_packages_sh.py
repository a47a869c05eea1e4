"""packages.sh against a package manager that is faked on PATH: what needs no real apt.  Under three shells."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gpunode.core.items.package import held_text, installed_text, packages_request
from gpunode.core.model import Changed, Outcome
from gpunode.core.remote import parse_outcome, program
from gpunode.node import script

SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]
INSTALLED = "nvidia-open all 580.178.04-1 hi \nmake amd64 4.3 ii \nhalf amd64 1 iF \ngone amd64 1 rc \nlib i386 2 ii "


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


class Node:
    """A folder of fake commands before PATH; a command that nobody prepared ends the test."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.folder, self.shell = folder, shell
        self.fake("dpkg-query", f"printf '%s\\n' '{INSTALLED}'")
        self.fake("dpkg", '[ "$1" = --print-architecture ] && echo amd64')
        self.fake("dkms", "exit 0")
        self.fake("apt-get", 'echo "apt-get $*" >>"$CALLS"; exit 1')

    def fake(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run(self, value: dict[str, object], *, check: bool = False) -> Outcome:
        text = program(script("packages.sh"), packages_request(value, check=check))
        env = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}", "CALLS": str(self.folder / "calls")}
        done = subprocess.run([*self.shell, "-s"], input=text, text=True, capture_output=True, env=env, check=False)
        return parse_outcome(done.stdout, done.returncode)

    @property
    def calls(self) -> str:
        return (self.folder / "calls").read_text() if (self.folder / "calls").exists() else ""


@pytest.fixture
def node(tmp_path: Path, shell: list[str]) -> Node:
    return Node(tmp_path, shell)


def test_a_satisfied_request_is_unchanged_and_asks_no_apt(node: Node) -> None:
    value = {
        "install": [{"name": "nvidia-open", "version": "580*", "hold": True}, {"name": "make"}],
        "remove": ["gone", "never-there"],
        "refresh": ["/nonexistent.sources"],
    }
    assert node.run(value) == Outcome(status="unchanged", message="all packages are up to date")
    assert node.calls == ""


def test_check_mode_names_each_difference_and_asks_no_repository_that_is_not_there(node: Node) -> None:
    value = {
        "install": [
            {"name": "nvidia-open", "version": "580.95.05-1"},
            {"name": "make", "hold": True},
            {"name": "half"},
            {"name": "lib", "hold": True},
        ],
        "remove": ["nvidia-open"],
        "refresh": ["/nonexistent.sources"],
    }
    outcome = node.run(value, check=True)
    assert outcome.status == "changed"
    assert outcome.texts == (
        "change nvidia-open from 580.178.04-1 to 580.95.05-1",
        "hold make",
        "finish installing half",
        "install lib",
        "hold lib",
        "remove nvidia-open",
    )
    names = ["nvidia-open", "make", "half", "lib", "lib", "nvidia-open"]
    assert [(one.kind, one.name) for one in outcome.changed] == [("package", name) for name in names]
    assert (outcome.changed[0].was, outcome.changed[0].now) == ("580.178.04-1", "580.95.05-1")
    assert outcome.notes == ("the node has no lists of these packages yet: the package manager was not asked",)
    assert node.calls == ""


def test_check_mode_asks_nothing_while_a_package_that_sets_up_a_repository_is_missing(node: Node) -> None:
    value = {"install": [{"name": "lib"}], "after": ["epel-release"]}
    outcome = node.run(value, check=True)
    assert outcome.texts == ("install lib",)
    assert outcome.notes == ("epel-release not there yet, and sets up a repository: the package manager was not asked",)
    assert node.calls == ""
    assert "the package manager was not asked" not in str(node.run(value | {"after": ["make"]}, check=True).notes)


def test_a_kernel_without_its_module_is_not_unchanged(node: Node, tmp_path: Path) -> None:
    kernels = [tree.name for tree in Path("/lib/modules").glob("*") if (tree / "build").is_dir()]
    node.fake("dkms", "echo 'nvidia/580.178.04, 6.1.0-50-amd64, x86_64: built'")
    outcome = node.run({"install": [{"name": "make"}]}, check=True)
    assert outcome.status == ("changed" if kernels else "unchanged")


@pytest.mark.parametrize("other", ["dnf", "zypper", "pacman"])
def test_the_package_manager_of_another_distribution_is_not_used(tmp_path: Path, other: str) -> None:
    busybox = shutil.which("busybox")
    if not busybox:
        pytest.skip("needs busybox, for a PATH without apt-get")
    if "debian" not in Path("/etc/os-release").read_text():
        pytest.skip("needs Debian or Ubuntu: there the others are not the distribution's own")
    for name in ("mktemp", "base64", "rm", "tr", "cat", "id", "head"):
        (tmp_path / name).symlink_to(busybox)
    (tmp_path / other).write_text("#!/bin/sh\n")
    (tmp_path / other).chmod(0o755)
    text = program(script("packages.sh"), packages_request({"install": ["make"]}))
    done = subprocess.run(
        ["/bin/sh", "-s"], input=text, text=True, capture_output=True, env={"PATH": str(tmp_path)}, check=False
    )
    outcome = parse_outcome(done.stdout, done.returncode)
    assert (outcome.status, done.returncode) == ("refused", 5)
    assert "no package manager was found" in outcome.message


def call(commands: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Functions of packages.sh, with what they read in the folder of the request."""
    return subprocess.run(
        ["/bin/sh", "-s"],
        input=script("packages.sh").rpartition("\nmain\n")[0] + f"\n{commands}\n",
        text=True,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "GPUNODE_IN": str(folder)},
        check=False,
    )


NOW = """nvidia-open 580.95.05-1 hold
libcuda1 580.95.05-1 -
make 4.3-1 -
kernel-devel 5.14-1 -
half 1-1 broken
old 1-1 -
"""


@pytest.mark.parametrize(
    ("would", "differences", "announced"),
    [
        ("", "hold make\n", "hold make\n"),
        (
            "install nvidia-open 595.91.07-1\ninstall libcuda1 595.91.07-1\ninstall libnew 1-1\ninstall make 4.3-1\n"
            "remove old\n",
            "change nvidia-open from 580.95.05-1 to 595.*\nhold make\nremove old\n",
            "change nvidia-open from 580.95.05-1 to 595.91.07-1\nchange libcuda1 from 580.95.05-1 to 595.91.07-1\n"
            "install libnew 1-1\nremove old\nhold make\n",
        ),
        ("install half 1-1\n", "finish installing half\n", "finish installing half\n"),
        ("install kernel-devel 5.14-2\n", "install kernel-devel-5.14-2\n", "install kernel-devel-5.14-2\n"),
    ],
)
def test_check_mode_names_all_that_the_package_manager_would_change(
    would: str, differences: str, announced: str, tmp_path: Path
) -> None:
    for name, text in ((".before", NOW), (".would", would), (".differences", differences)):
        (tmp_path / name).write_text(text)
    done = call("list_dry_run", tmp_path)
    assert done.stderr == ""
    assert done.stdout == announced


@pytest.mark.skipif(not Path("/usr/lib/apt/apt-helper").exists(), reason="no apt")
def test_packages_of_the_sources_get_a_version_asked_for_and_of_another_version_all(node: Node, tmp_path: Path) -> None:
    listed, sources, pins = tmp_path / "repo_Packages", tmp_path / "own.sources", tmp_path / "pins"
    listed.write_text(
        "Package: libnvidia-ml\nArchitecture: amd64\nVersion: 595.91-1\n\n"
        "Package: libnvidia-ml\nArchitecture: amd64\nVersion: 600.10-1\n\n"
        "Package: nvidia-open\nVersion: 595.91-1\nDescription: Package: nothing\n\n"
    )
    sources.write_text("Types: deb\n")
    node.fake(
        "apt-get",
        f"""case $* in
*indextargets*) echo {tmp_path}/repo_Packages ;;
*' update '*) ;;
*) cat "${{2%/*}}/.preferences" >{pins}; echo 'E: enough' >&2; exit 1 ;;
esac""",
    )
    value = {
        "install": [
            {"name": "nvidia-open", "version": "595.91-1"},
            {"name": "nvidia-settings", "version": "595.*"},
            {"name": "other", "version": "1.0"},
            {"name": "make"},
        ],
        "refresh": [str(sources)],
    }
    assert node.run(value).status == "failed"
    assert {*pins.read_text().strip().split("\n\n")} >= {
        "Package: libnvidia-ml:any nvidia-open:any\nPin: version 595.91-1\nPin-Priority: 1001",
        "Package: libnvidia-ml:any nvidia-open:any\nPin: version 595.*\nPin-Priority: 1001",
        "Package: ?*\nPin: version 1.0\nPin-Priority: 1001",
    }


@pytest.mark.parametrize(
    ("sources", "partial", "lists", "fresh"),
    [(60, 1, 90, True), (1, 60, 90, False), (90, 60, 60, True), (90, 1, 2000, True), (3000, 2000, 2000, False)],
    ids=["read, and nothing was new", "sources came since", "read after the sources", "only partial", "old"],
)
def test_lists_are_as_old_as_apts_last_look_at_their_sources(
    sources: int, partial: int, lists: int, fresh: bool, tmp_path: Path
) -> None:
    """Times are minutes ago; a list itself has the time that its server gave it."""
    for name in ("lists/partial", "parts"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lists/a_Packages").touch()
    for name, minutes in {"lists/a_Packages": 9000, "lists/partial": partial, "lists": lists, "parts": sources}.items():
        os.utime(tmp_path / name, (time.time() - 60 * minutes,) * 2)
    (tmp_path / "apt-config").write_text(f"echo lists={tmp_path}/lists/ parts={tmp_path}/parts sources={tmp_path}/none")
    (tmp_path / "apt-config").chmod(0o755)
    done = call(f"PATH={tmp_path}:$PATH; have() {{ :; }}\nlists_are_fresh && echo fresh", tmp_path)
    assert (done.stdout == "fresh\n") is fresh, done.stderr


@pytest.mark.parametrize(
    ("lists", "all_of_it", "updates"),
    [
        ("old_Packages", "", ["own"]),
        ("", "", ["all"]),
        ("", "W: Failed to fetch http://somebody.else/InRelease", ["all", "own"]),
        ("", "W: Failed to fetch http://own/InRelease", ["all", "own"]),
    ],
)
def test_repositories_are_read_once_and_those_asked_for_are_judged_alone(
    lists: str, all_of_it: str, updates: list[str], tmp_path: Path
) -> None:
    """Without any lists all are read; what fails then may be somebody else's."""
    for folder in ("bin", "lists", ".sources"):
        (tmp_path / folder).mkdir()
    if lists:
        (tmp_path / "lists" / lists).touch()
    own = tmp_path / "own.sources"
    own.write_text("Types: deb\n")
    (tmp_path / "refresh").write_text(f"{own}\n")
    (tmp_path / "bin/apt-get").write_text(
        f"""#!/bin/sh
case $* in
*indextargets*) exit ;;
*/.sources*) echo own >>{tmp_path}/updates; case '{all_of_it}' in *//own*) echo '{all_of_it}' ;; esac ;;
*) echo all >>{tmp_path}/updates; echo '{all_of_it}' ;;
esac"""
    )
    (tmp_path / "bin/apt-get").chmod(0o755)
    names = f"PATH={tmp_path}/bin:$PATH log={tmp_path}/log laid_lists={tmp_path}/lists manager=apt"
    done = call(f"{names}\napt_refresh 9>/dev/null", tmp_path)
    assert (tmp_path / "updates").read_text().split() == updates, done
    assert ("cannot be read" in done.stdout) == ("//own" in all_of_it)


def test_what_apt_would_do_is_read_from_its_own_list(tmp_path: Path) -> None:
    """As apt-get --print-uris --show-versions printed it, apt 2.6.2 (with removals that purge)."""
    (tmp_path / "apt-get").write_text(
        """#!/bin/sh
cat <<'SAID'
Reading package lists...
Building dependency tree...
The following additional packages will be installed:
   libappstream4 (0.16.1-2+b1)
Suggested packages:
   apt-config-icons (0.16.1-2)
The following packages will be REMOVED:
   curl* (7.88.1-10+deb12u15)
The following NEW packages will be installed:
   hello (2.10-3)
   libgcc-s1:i386 (12.2.0-14+deb12u1)
The following packages will be upgraded:
   appstream (0.16.1-2 => 0.16.1-2+b1)
   libappstream4 (0.16.1-2 => 0.16.1-2+b1)
The following packages will be DOWNGRADED:
   libssl3 (3.0.18-1~deb12u2 => 3.0.17-1~deb12u2)
2 upgraded, 2 newly installed, 1 downgraded, 1 to remove and 134 not upgraded.
Need to get 2652 kB of archives.
After this operation, 217 kB disk space will be freed.
'http://deb.debian.org/debian/pool/main/h/hello/hello_2.10-3_amd64.deb' hello_2.10-3_amd64.deb 53080
SAID
"""
    )
    (tmp_path / "apt-get").chmod(0o755)
    (tmp_path / ".to_remove").touch()
    (tmp_path / "install").touch()
    done = call(f"PATH={tmp_path}:$PATH\napt_simulate 9>/dev/null", tmp_path)
    assert done.stdout.splitlines() == [
        "remove curl",
        "install hello 2.10-3",
        "install libgcc-s1:i386 12.2.0-14+deb12u1",
        "install appstream 0.16.1-2+b1",
        "install libappstream4 0.16.1-2+b1",
        "install libssl3 3.0.17-1~deb12u2",
    ], done.stderr


def test_what_dpkg_wants_again_is_asked_of_apt_by_name_where_it_does_not_fix_it_by_itself(tmp_path: Path) -> None:
    """An unpacking that was killed leaves packages that apt's --fix-broken alone leaves as they are."""
    fakes = tmp_path / "bin"
    fakes.mkdir()
    for name, body in (
        ("dpkg", '[ "$1" = --audit ] && echo torn; [ "$1" != --configure ]'),
        (
            "dpkg-query",
            "printf '%s\\n' 'ii  make' 'iFR nvidia-kernel-open-dkms' 'iHR libnvidia-ml1:amd64' 'iU  next'",
        ),
        ("apt-get", f'shift 2; echo "$*" >>{tmp_path}/calls; [ "$1$4" != -y ]'),
    ):
        (fakes / name).write_text(f"#!/bin/sh\n{body}\n")
        (fakes / name).chmod(0o755)
    done = call(f"PATH={fakes}:$PATH log={tmp_path}/log manager=apt\napt_recover 9>/dev/null", tmp_path)
    plain, named = "--fix-broken install", "--reinstall nvidia-kernel-open-dkms libnvidia-ml1:amd64"
    calls = [f"-s {plain}", f"-y {plain}", f"-s {plain} {named}", f"-y {plain} {named}"]
    assert (tmp_path / "calls").read_text().splitlines() == calls, done
    assert "cannot be finished" not in done.stdout


@pytest.mark.parametrize(
    ("journal", "refused"),
    [
        ("", True),
        ('{"op":"packages","phase":"done","held":["make","nvidia-open"]}', False),
        ('{"op":"packages","phase":"failed","added":[],"held":["nvidia-open"]}', False),  # a module was not built
        ('{"op":"packages","phase":"done","held":["nvidia"],"unheld":["nvidia-open"]}', True),
        ('{"op":"files","phase":"done","held":["nvidia-open"]}', True),
    ],
)
def test_what_gpunode_holds_itself_may_change(journal: str, refused: bool, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "journal.jsonl").write_text(journal)
    for name, text in ((".before", NOW), (".would", "install nvidia-open 595.91.07-1\n"), (".to_remove", "")):
        (tmp_path / name).write_text(text)
    done = call(f"GPUNODE_STATE={state}\nmanager=apt\nrefuse_surprises\necho went on", tmp_path)
    assert ("went on" in done.stdout) is not refused, done
    assert ("is held, not by gpunode" in done.stdout) is refused


def test_a_failure_shows_its_log_before_anything_is_rolled_back(tmp_path: Path) -> None:
    (tmp_path / ".log").write_text("gpunode\tstatus\tchanged\ncc1: fatal error\n")
    undo = 'put_back() { echo "Removing nvidia" >>"$log"; }; undo_changes() { :; }; half=1'
    done = call(f'{undo}; fail "it broke" "see the log"', tmp_path)
    outcome = parse_outcome(done.stdout, done.returncode)
    assert (outcome.status, outcome.message, outcome.fix) == ("failed", "it broke", "see the log")
    assert outcome.log.splitlines() == [" gpunode\tstatus\tchanged", "cc1: fatal error"]
    assert outcome.rollback == "Removing nvidia"


def test_what_a_failed_transaction_had_installed_leaves_no_configuration_behind(tmp_path: Path) -> None:
    for name, text in ((".before", "a 1 -\n"), (".packages", "a 1\n"), ("remnants", "old\n")):
        (tmp_path / name).write_text(text)
    fake = """kept=$GPUNODE_IN failure=x manager=apt
      manager_() {
        case $1 in
          installed) cat "$GPUNODE_IN/.before"; [ -e "$GPUNODE_IN/gone" ] || printf '%s\n' 'new 1 -' 'old 1 -' ;;
          commit) : >"$GPUNODE_IN/gone" ;;
          remnants) shift; printf '%s\n' "$@" ;; # of both
          purge) echo "$@" ;;
        esac
      }"""
    assert "purge new\n" in call(f"{fake}\nput_back", tmp_path).stdout


def test_a_user_that_goes_with_the_last_file_of_a_branch_is_made_again_by_the_packages_that_name_it(
    tmp_path: Path,
) -> None:
    """As Canonical's nvidia-compute-utils-595-server takes that of 580 away; its script of 580 makes it when asked."""
    (tmp_path / "info").mkdir()
    for name, text in (("utils-580", "adduser --system daemon"), ("other", "adduser daemons"), ("third:i386", "")):
        (tmp_path / f"info/{name}.postinst").write_text(text)
    fake = f"""DPKG_ADMINDIR={tmp_path}
      id() {{ [ "$2" != daemon ] || [ ! -e "$GPUNODE_IN/purged" ]; }}
      attempt() {{ case $2 in --purge) : >"$GPUNODE_IN/purged" ;; *) echo "$1 $3" ;; esac; }}"""
    assert call(f"{fake}\napt_purge utils-595", tmp_path).stdout == "dpkg-reconfigure utils-580\n"
    assert call(f"{fake}\nid() {{ :; }}\napt_purge utils-595", tmp_path).stdout == ""


def test_a_unit_that_runs_without_its_file_is_an_orphan(tmp_path: Path) -> None:
    """The rows are those of Ubuntu 24.04 before and after its docker.io was purged."""
    rows = "docker.socket not-found active listening docker.socket\\ndocker.service loaded active running Docker\\n"
    assert call(f"systemctl() {{ printf '{rows}'; }}; orphans", tmp_path).stdout == "docker.socket\n"
    assert call("have() { false; }; orphans && echo none", tmp_path).stdout == "none\n"


def dkms_missing(dkms: str, modules: Path, tree: Path, request: Path) -> subprocess.CompletedProcess[str]:
    """What packages.sh finds that DKMS has to build, where kernels' folders are in `modules` and DKMS's in `tree`."""
    text = script("packages.sh").rpartition("\nmain\n")[0]
    text = text.replace("/lib/modules/", f"{modules}/").replace("DKMS_TREE=/var/lib/dkms", f"DKMS_TREE={tree}")
    return subprocess.run(
        ["/bin/sh", "-s"],
        input=f"{text}\n{dkms}; rpm() {{ :; }}; dkms_missing\n",
        text=True,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "GPUNODE_IN": str(request)},
        check=False,
    )


@pytest.mark.parametrize(
    ("built", "there", "missing"),
    [
        ("nvidia.ko", "updates/dkms/nvidia.ko", False),
        ("nvidia.ko.xz", "extra/nvidia.ko", False),
        ("nvidia-current.ko", "updates/dkms/nvidia-current-modeset.ko", True),
        ("nvidia.ko", "", True),
    ],
)
def test_a_module_that_has_gone_from_its_kernels_folder_is_built_again(
    built: str, there: str, missing: bool, tmp_path: Path
) -> None:
    """DKMS calls it installed, whatever is left of it."""
    kernel, tree = tmp_path / "modules" / "6.1.0-50-amd64", tmp_path / "dkms"
    (kernel / "build").mkdir(parents=True)
    (tree / "nvidia/595.91.07/6.1.0-50-amd64/x86_64/module").mkdir(parents=True)
    (tree / "nvidia/595.91.07/6.1.0-50-amd64/x86_64/module" / built).touch()
    if there:
        (kernel / there).parent.mkdir(parents=True)
        (kernel / there).touch()
    said = "dkms() { echo nvidia/595.91.07, 6.1.0-50-amd64, x86_64: installed; }"
    done = dkms_missing(said, kernel.parent, tree, tmp_path)
    assert done.stdout == "nvidia 595.91.07 6.1.0-50-amd64\n" * missing


@pytest.mark.parametrize(
    ("links", "asked"),
    [
        ({"6.1.0-50-amd64": "595.91.07/6.1.0-50-amd64/x86_64"}, False),
        ({"6.1.0-50-amd64": "580.95.05/6.1.0-50-amd64/x86_64"}, True),
        ({"6.1.0-40-amd64": "595.91.07/6.1.0-40-amd64/x86_64"}, True),  # whose headers are not there
        ({}, True),
    ],
)
def test_dkms_is_asked_only_where_its_links_do_not_show_all_as_installed(
    links: dict[str, str], asked: bool, tmp_path: Path
) -> None:
    modules, tree = tmp_path / "modules", tmp_path / "dkms"
    (modules / "6.1.0-50-amd64/build").mkdir(parents=True)
    (modules / "6.1.0-40-amd64").mkdir()
    (modules / "6.1.0-50-amd64/nvidia.ko").touch()
    for kernel in ("6.1.0-50-amd64", "6.1.0-40-amd64"):
        (tree / "nvidia/595.91.07" / kernel / "x86_64/module").mkdir(parents=True)
    (tree / "nvidia/595.91.07/source").mkdir()
    (tree / "nvidia/595.91.07/source/dkms.conf").touch()
    for kernel, leads in links.items():
        (tree / f"nvidia/kernel-{kernel}-x86_64").symlink_to(leads)
    done = dkms_missing('dkms() { : >"$GPUNODE_IN/asked"; }', modules, tree, tmp_path)
    assert (done.stdout, done.stderr, (tmp_path / "asked").exists()) == ("", "", asked)


COMPILER = "nv.c:7:3: error: too few arguments to function"
MAKE_LOG = f"  CC nv.o\n{COMPILER}\nmake[1]: *** [nv.o] Error 1\n"


@pytest.mark.parametrize(
    ("text", "printed"),
    [(MAKE_LOG, COMPILER), ("CC nv.o\n\nKilled\n", "CC nv.o; Killed"), (None, "Error! Bad return status for module")],
)
def test_the_message_of_a_failed_build_has_what_the_compiler_said(
    text: str | None, printed: str, tmp_path: Path
) -> None:
    build = tmp_path / "nvidia" / "595.91.07" / "build"
    build.mkdir(parents=True)
    if text is not None:
        (build / "make.log").write_text(text)
    faked = (
        "dkms_missing() { echo nvidia 595.91.07 6.1.0-50-amd64; }; dkms_stale() { return 1; }; "
        "dkms() { echo 'Error! Bad return status for module'; return 10; }"
    )
    done = call(f"DKMS_TREE={tmp_path}; {faked}; dkms_build", tmp_path)
    outcome = parse_outcome(done.stdout, done.returncode)
    assert outcome.message == f"DKMS could not build nvidia 595.91.07 for kernel 6.1.0-50-amd64: {printed}"
    assert "Error! Bad return status" in outcome.log and (text or "").strip() in outcome.log


UPDATE = """\
Ign:1 http://10.89.0.10/cuda ./ InRelease
  Cannot initiate the connection to 10.89.0.10:80. - connect (113: No route to host)
Err:2 http://10.89.0.10/cuda ./ Release
  Could not connect to 10.89.0.10:80, connection timed out
Reading package lists...
E: The repository 'http://10.89.0.10/cuda ./ Release' does not have a Release file.
"""


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (UPDATE, "Could not connect to 10.89.0.10:80, connection timed out; "),
        (UPDATE.replace("Err:2", "Ign:2"), "Cannot initiate the connection to 10.89.0.10:80. - connect (113: No route"),
        (UPDATE.replace("  C", "C"), "E: The repository"),
    ],
)
def test_why_an_archive_could_not_be_reached_comes_first(text: str, first: str, tmp_path: Path) -> None:
    (tmp_path / "printed").write_text(text)
    read = 'undo_changes() { :; }; apt_read cat "$GPUNODE_IN/printed" || apt_update_failed'
    outcome = parse_outcome(call(read, tmp_path).stdout, 1)
    assert outcome.message.startswith(f"the repository in cannot be read: {first}")
    assert outcome.message.endswith("does not have a Release file.")
    assert outcome.log == text.strip()


TWO = "nvidia-open 595-1 installed (2 packages)"


def package(name: str, was: str = "", now: str = "") -> Changed:
    return Changed(kind="package", name=name, was=was, now=now)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            [package("dkms", now="3.0-1"), package("nvidia-open", now="595-1")],
            TWO,
        ),
        ([package("nvidia-open", "580-1", "595-1"), package("nvidia-open")], "nvidia-open 595-1 installed"),
        ([package("dkms", now="3.0-1")], "dkms 3.0-1 installed"),
        ([package("nvidia-open"), package("nouveau", "1")], ""),
    ],
)
def test_what_was_installed_in_a_few_words(changed: list[Changed], text: str) -> None:
    assert installed_text(changed, ["linux-headers-amd64", "nvidia-open"]) == text


HELD = [Changed(kind="package", name=name, text=f"held {name}") for name in ("nvidia-open", "dkms")]


@pytest.mark.parametrize(
    ("changed", "text"), [(HELD, "nvidia-open, dkms held"), ([*HELD, package("old", "1")], ""), ([], "")]
)
def test_a_run_that_has_only_held_packages_says_so(changed: list[Changed], text: str) -> None:
    assert held_text(changed) == text
