"""This machine: may it carry a lab, what does it lack, where does the lab keep its things, how is podman called."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.late import dataclass
from gpunode.edge.state import cache_path, state_path

Log = Callable[[str], None]

PACKAGES = (
    "aardvark-dns",
    "conmon",
    "debian-archive-keyring",
    "gpg",
    "iptables",
    "mmdebstrap",
    "netavark",
    "openssh-client",
    "podman",
    "runc",
)
DISK_GIB = 6.0  # two images with their cache; each node adds little until it installs something
NODE_GIB = 0.5
INOTIFY_INSTANCES = 8192
ARCHIVE_VARIABLE = "GPUNODE_LAB_ARCHIVE"
UBUNTU_VARIABLE = "GPUNODE_LAB_UBUNTU_ARCHIVE"


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the lab keeps its things: `state` goes with `lab down --all`, `cache` may be deleted at any time."""

    state: Path
    cache: Path

    @property
    def suffix(self) -> str:
        """What sets the podman names of this state folder apart from those of others; empty for root's usual one.

        Two labs on one machine (of two state folders) share neither network, nor package server, nor containers.
        """
        if self.state == Path("/root/.local/state/gpunode/lab"):
            return ""
        return "-" + hashlib.sha256(str(self.state.resolve()).encode()).hexdigest()[:8]

    @property
    def nodes(self) -> Path:
        return self.state / "nodes"

    @property
    def repositories(self) -> Path:
        return self.cache / "repositories"

    @property
    def key(self) -> Path:
        return self.state / "id_ed25519"


def places() -> Places:
    """The XDG state and cache folders of the lab."""
    return Places(state=state_path() / "lab", cache=cache_path("lab"))


# ---------------------------------------------------------------- may it run here, and what is missing


def refuse_unfit_machine(*, nodes: int = 0) -> None:
    """Raises RefusedError, with what to do, on a machine that cannot carry `nodes` lab nodes."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise RefusedError(
            f"the lab cannot run on {platform.system()} {platform.machine()}",
            expected="Linux on x86_64",
            fix="use a virtual machine with Debian 12 or 13",
        )
    if os.geteuid() != 0:
        raise RefusedError(
            f"the lab cannot run as user {os.geteuid()}",
            expected="root: its nodes are privileged containers",
            fix="run it by sudo, best on a machine you can throw away",
        )
    if not shutil.which("apt-get") or not shutil.which("dpkg-query"):
        raise RefusedError(
            "there is no apt-get on this machine",
            expected="Debian or Ubuntu",
            fix="use a virtual machine with Debian 12 or 13",
        )
    _refuse_full_disk(nodes)


def _refuse_full_disk(nodes: int) -> None:
    folder = Path("/var/lib/containers")
    while not folder.exists():
        folder = folder.parent
    free, need = shutil.disk_usage(folder).free / 2**30, DISK_GIB + NODE_GIB * nodes
    if free < need:
        raise RefusedError(
            f"{folder} has {free:.1f} GiB free", expected=f"{need:.1f} GiB for {nodes} nodes", fix="free some space"
        )


def install_missing_packages(log: Log, *more: str) -> None:
    """Install by apt what the lab needs and this machine lacks, saying so first."""
    missing = [name for name in (*PACKAGES, *more) if not _installed(name)]
    if not missing:
        return
    log(f"installing with apt-get: {' '.join(missing)}")
    wait = ("-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")
    run("apt-get", *wait, "-qq", "update")
    run("apt-get", *wait, "-qq", "install", "--yes", "--no-install-recommends", *missing)


def _installed(package: str) -> bool:
    found = run("dpkg-query", "-W", "-f", "${db:Status-Status}", package, check=False)
    return found.returncode == 0 and found.stdout == "installed"


def raise_inotify_limit(log: Log) -> None:
    """Let 20 systemds watch files: the usual 128 instances for all of them together end with the fifteenth or so."""
    path = Path("/proc/sys/fs/inotify/max_user_instances")
    if int(path.read_text()) >= INOTIFY_INSTANCES:
        return
    log(f"setting fs.inotify.max_user_instances to {INOTIFY_INSTANCES} until this machine restarts")
    try:
        path.write_text(str(INOTIFY_INSTANCES))
    except OSError as error:
        log(f"that was not possible ({error}): more than a dozen nodes may fail to start")


def weigh(nodes: int, cgroups: Path = Path("/sys/fs/cgroup")) -> None:
    """Let nodes have as much CPU as this machine's own processes, one for one.

    All lie in one cgroup of podman's, which counts as a single process otherwise: beside a build they would starve.
    """
    weights = (cgroups / "cpu/libpod_parent/cpu.shares", 1024), (cgroups / "libpod_parent/cpu.weight", 100)
    for path, one in weights:  # cgroup v1, v2
        with contextlib.suppress(OSError):
            if int(path.read_text()) < one * nodes:
                path.write_text(str(one * nodes))


# ---------------------------------------------------------------- Debian's archive, as this machine reaches it


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Debian's and Ubuntu's archives: base URLs, and the apt settings under which this machine reads them."""

    main: str
    security: str
    settings: str
    ubuntu: str = "http://archive.ubuntu.com/ubuntu"  # of Ubuntu nodes


def archive() -> Archive:
    """The archive that this machine's own apt sources name; GPUNODE_LAB_ARCHIVE («MAIN SECURITY») overrides it."""
    own = os.environ.get(ARCHIVE_VARIABLE, "").split()
    if not own:
        listed = run(
            "apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI) $(COMPONENT)", "Created-By: Packages"
        )
        own = _debian_urls(listed.stdout)
    if len(own) != 2:
        raise RefusedError(
            "this machine's apt sources do not name Debian's archive and its security archive",
            expected="sources for bookworm or trixie, and for bookworm-security or trixie-security",
            fix=f"set {ARCHIVE_VARIABLE}='URL-OF-DEBIAN URL-OF-DEBIAN-SECURITY'",
        )
    names = ("Acquire::Check-Valid-Until", "Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Retries")
    settings = run("apt-config", "dump", *names).stdout
    ubuntu = os.environ.get(UBUNTU_VARIABLE, Archive.ubuntu)
    return Archive(main=own[0].rstrip("/"), security=own[1].rstrip("/"), settings=settings, ubuntu=ubuntu.rstrip("/"))


def _debian_urls(listed: str) -> list[str]:
    """[main, security] from lines `SUITE URL COMPONENT`; an empty list unless both are there."""
    suites = {"bookworm", "trixie", "forky", "sid", "stable", "oldstable", "testing", "unstable"}
    rows = [line.split() for line in listed.splitlines()]
    main = next((row[1] for row in rows if row[0] in suites and row[2] == "main"), "")
    security = next((row[1] for row in rows if row[0].removesuffix("-security") in suites - {row[0]}), "")
    return [main, security] if main and security else []


# ---------------------------------------------------------------- commands


def run(*command: str, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end and give back what it printed; a failure is a GpunodeError with its last words."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,  # Ctrl-C is ours to handle: a podman that dies half way leaves a mess
    ) as process:
        try:
            stdout, stderr = process.communicate(stdin)
        except BaseException:
            _end(process)
            raise
    if check and process.returncode:
        raise command_failed(command, process.returncode, stderr or stdout)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _end(process: subprocess.Popen[str]) -> None:
    """Have a command stop, with all it started, and clean up after itself (mmdebstrap has mounts)."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
            return


def command_failed(command: Sequence[str], status: int, printed: str) -> GpunodeError:
    """The error for a command that ended with `status`, with the last lines it said."""
    words = " ".join(command[:3])
    last = "; ".join(line.strip() for line in printed.strip().splitlines()[-6:])
    return GpunodeError(f"`{words} …` failed with status {status}: {last or 'it printed nothing'}")


def podman(*arguments: str, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run podman with the lab's own settings."""
    return run("env", f"CONTAINERS_CONF={containers_conf()}", "podman", *arguments, check=check, stdin=stdin)


def containers_conf() -> Path:
    """The lab's podman settings, written on first use.

    runc and cgroupfs, because crun refuses a hybrid cgroup hierarchy and there may be no systemd here; limits are this
    process's own at most, because without CAP_SYS_RESOURCE none may be raised (by the time runc sets them, the one on
    processes may even be lower).
    """
    path = places().state / "containers.conf"
    files, processes = _limit(resource.RLIMIT_NOFILE, 1048576), _limit(resource.RLIMIT_NPROC, 32768)
    text = f"""[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
pids_limit = 0
cgroups = "no-conmon"
log_driver = "k8s-file"
log_size_max = 1048576
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""
    if not path.exists() or path.read_text() != text:
        write(path, text)
    return path


def _limit(kind: int, most: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)


def write(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file as a whole: readers see the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)


@contextlib.contextmanager
def lock(name: str, *, log: Log) -> Iterator[None]:
    """Hold the lab's lock of that name; wait for whoever has it, and say so.

    `state` guards the nodes of one state folder, the other ones the cache, which several state folders may share.
    """
    folder = places().state if name == "state" else places().cache
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / f"{name}.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            log(f"waiting for another gpunode lab command{f' (process {holder})' if holder else ''} to release {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
