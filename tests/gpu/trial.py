"""The trial of gpunode on a machine with a GPU: what reads the GPU, then a node of its own with containerd and pods.

    python3 trial.py RECORD.tar.gz

Runs there as root, by Python's library and the packages of gpunode in `site`.  It needs neither network nor systemd,
changes no setting of the card, and writes one record, redacted as that of gpunode selftest.  What could not be done is
a row of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SECONDS = 1080  # of all of it; the last minute is for the end
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib")
PROGRAMS = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/local/bin")
DRIVER = ("libnvidia-*.so*", "libcuda.so*", "libcudadebugger.so*", "libnvcuvid.so*", "libnvoptix.so*")
DRIVER_PROGRAMS = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
    *("nvidia-modprobe", "dcgmi", "nvbandwidth", "gpu_burn"),
)
KEPT = ("/lab",)  # on a node of gpunode's lab the stubs read there what the GPUs are like
# settings of the card, each of which has to be at the end as it was
SETTINGS = (
    *("persistence_mode", "compute_mode", "accounting.mode", "ecc.mode.current", "ecc.mode.pending"),
    *("mig.mode.current", "mig.mode.pending", "power.limit", "clocks.applications.graphics", "clocks.max.sm"),
)
ADD = "/usr/local/bin/gpu-add"
IMAGE = "localhost/gpunode-gpu-add:1"
KUBERNETES = HERE / "kubernetes"


class NotPossible(Exception):
    """Why a check cannot be made on this machine."""


class Failed(Exception):
    """What is wrong."""


@dataclass
class Trial:
    """What was found so far."""

    began: float = field(default_factory=time.monotonic)
    rows: list[dict[str, Any]] = field(default_factory=list)
    captures: dict[str, tuple[str, int, float]] = field(default_factory=dict)
    bare: str = ""  # what the program that computes said without a container

    def left(self) -> float:
        return SECONDS - (time.monotonic() - self.began)

    def check(self, name: str, what: Callable[[], str]) -> bool:
        """Whether it passed; the row is printed at once."""
        before = time.monotonic()
        try:
            if self.left() < 5:
                raise NotPossible(f"no time is left of {SECONDS} s")
            status, message = "passed", what()
        except NotPossible as reason:
            status, message = "not possible", str(reason)
        except (Failed, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            status, message = "failed", str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
        seconds = round(time.monotonic() - before, 1)
        self.rows.append({"id": name, "status": status, "message": message, "seconds": seconds})
        print(f"{status:<13} {name:<26} {message.splitlines()[0] if message else ''} ({seconds} s)", flush=True)
        return status == "passed"

    def judged(self, status: int, text: str) -> str:
        """What the program said in a container; that it cannot compute here is no fault of the container."""
        if self.bare and self.bare in text and "added" not in text:
            raise NotPossible(f"as without a container: {self.bare}")
        return computed(status, text)

    def run(self, command: Sequence[str], *, name: str = "", limit: float = 120, **options: Any) -> tuple[int, str]:
        """Exit status and output; kept in the record under `name`.  Never longer than what is left."""
        before, limit = time.monotonic(), max(5.0, min(limit, self.left()))
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True, **options,
        ) as process:  # fmt: skip
            try:
                text, _ = process.communicate(timeout=limit)
                status = process.returncode
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                text, status = f"no end within {limit:.0f} s\n{process.communicate()[0]}", 124
        if name:
            self.captures[name] = (text, status, time.monotonic() - before)
        return status, text


def settings(trial: Trial) -> dict[str, str]:
    """Of all cards, by their names; a driver does not know all of them."""
    if not shutil.which("nvidia-smi"):
        raise NotPossible("nvidia-smi is not on the PATH")
    found = {}
    for one in SETTINGS:
        status, text = trial.run(("nvidia-smi", f"--query-gpu={one}", "--format=csv,noheader"), limit=30)
        if not status:
            found[one] = text.strip()
    if not found:
        raise NotPossible(f"nvidia-smi answers no question: {text.strip()}")
    return found


# ---------------------------------------------------------------- gpunode


def gpunode(*words: str) -> tuple[str, ...]:
    return ("python3", "-m", "gpunode", *words)


def environment(site: Path, home: Path) -> dict[str, str]:
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin"
    return {"PYTHONPATH": str(site), "PATH": f"{site}/bin:{path}", "HOME": str(home), "LC_ALL": "C.UTF-8"}


def on_this_machine(trial: Trial, home: Path) -> None:
    """All that reads the GPU, on the machine as it is."""
    variables = environment(HERE / "site", home)

    def selftest() -> str:
        archive = home / "selftest.tar.gz"
        words = gpunode("selftest", "--limit", "200", "-o", str(archive), "--format", "json")
        status, text = trial.run(words, name="machine-selftest.json", limit=240, env=variables, cwd=home)
        if status == 5:
            raise NotPossible(text.strip().splitlines()[-1])
        counts = json.loads(text[text.index("{") :])["counts"]
        said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
        if status:
            raise Failed(said)
        return said

    def read(verb: str, *words: str, good: tuple[int, ...]) -> str:
        name = f"machine-{verb}.json"
        status, text = trial.run(
            gpunode(verb, "--local", *words, "--format", "json"), name=name, env=variables, cwd=home
        )
        if status not in good:
            raise Failed(f"exit status {status}: {text.strip()[-400:]}")
        return f"exit status {status}"

    trial.check("machine.selftest", selftest)
    trial.check("machine.detect", lambda: read("detect", good=(0,)))
    trial.check("machine.doctor", lambda: read("doctor", good=(0, 1)))
    trial.check("machine.verify", lambda: read("verify", "--no-smoke", good=(0, 1, 3, 5)))


# ---------------------------------------------------------------- the node


class Node:
    """A machine in namespaces: Ubuntu's tree, systemd, the GPUs of this one."""

    def __init__(self, trial: Trial, root: Path) -> None:
        self.trial, self.root = trial, root
        self.init: subprocess.Popen[bytes] | None = None
        self.groups: list[Path] = []
        self.pid = 0

    def lay_out(self) -> str:
        self.root.mkdir()
        with tarfile.open(HERE / "tree.tar") as tree:
            tree.extractall(self.root, filter="tar")
        shutil.copytree(HERE / "site", self.root / "opt/gpunode")
        for program in (HERE / "programs").iterdir():
            folder = "usr/local/lib/gpunode-lab" if program.name in ("pause", "containerd-first") else "usr/local/bin"
            (self.root / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(program, self.root / folder)
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost gpu-node\n")
        (self.root / "etc/hostname").write_text("gpu-node\n")
        (self.root / "etc/machine-id").write_text("")
        shutil.copy(HERE / "node.yml", self.root / "root/gpunode.yml")
        if KUBERNETES.exists():
            programs = shutil.ignore_patterns("cluster", "version")
            shutil.copytree(KUBERNETES, self.root / "opt/kubernetes", ignore=programs)
            shutil.copytree(KUBERNETES / "cluster", self.root / "opt/cluster", symlinks=True)
        shutil.copytree(HERE / "toolkit/repository", self.root / "opt/repository")
        shutil.copytree(HERE / "toolkit/vendor", self.root / "opt/nvidia")
        drop_in = self.root / "etc/systemd/system/containerd.service.d/trial.conf"
        drop_in.parent.mkdir(parents=True)
        first = "" if capable(24) else "ExecStartPre=-/usr/local/lib/gpunode-lab/containerd-first\n"
        drop_in.write_text(f"[Service]\n{first}ExecStartPost=-/usr/local/lib/gpunode-lab/pause\n")
        for unit in ("systemd-udevd", "systemd-resolved", "systemd-networkd", "docker", "ssh", "systemd-timesyncd"):
            link = self.root / f"etc/systemd/system/{unit}.service"
            if not link.exists():
                link.symlink_to("/dev/null")
        return f"{self.driver()} files of the driver, {len(list((HERE / 'programs').iterdir()))} programs"

    def driver(self) -> int:
        """Copies the driver's user space from this machine to where packages put it; how many files."""
        places = ((LIBRARIES, DRIVER, "usr/lib/x86_64-linux-gnu"), (PROGRAMS, DRIVER_PROGRAMS, "usr/bin"))
        count = 0
        for folders, patterns, target in places:
            found = (path for folder in folders for pattern in patterns for path in sorted(Path(folder).glob(pattern)))
            for path in found:
                new = self.root / target / path.name
                if not new.exists():
                    shutil.copy2(
                        path, new, follow_symlinks=not path.is_symlink() or path.resolve().parent != path.parent
                    )
                    count += 1
        self.trial.run(("chroot", str(self.root), "ldconfig"))
        return count

    def kept(self) -> list[str]:
        """What the node sees of this machine: the device files of GPUs, and what is mounted into /proc."""
        devices = [str(path) for path in sorted(Path("/dev").glob("nvidia*"))]
        mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
        return [*devices, *(path for path in mounts if path.startswith("/proc/")), *filter(os.path.exists, KEPT)]

    def control_groups(self) -> str:
        """A group for the node; where its controllers have to be enabled, this process leaves the group above."""
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        top = Path("/sys/fs/cgroup")
        unified = (top / "cgroup.controllers").exists()
        said = "cgroup v2" if unified else "cgroup v1"
        for _, names, path in lines:
            base = (top if unified else top / names.removeprefix("name=")) / path.lstrip("/")
            if (not names and not unified) or not base.is_dir():
                continue
            node = base / "gpunode-trial-node"
            node.mkdir(exist_ok=True)
            self.groups.append(node)
            if unified:
                said += f", {self.enable(base)}"
            elif names == "cpuset":
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (node / file).write_text((base / file).read_text())
        return said

    def enable(self, base: Path) -> str:
        own = base / "gpunode-trial-self"
        own.mkdir(exist_ok=True)
        (own / "cgroup.procs").write_text(str(os.getpid()))
        self.groups.append(own)
        wanted = (base / "cgroup.controllers").read_text().split()
        refused = {}
        for one in wanted:
            try:
                (base / "cgroup.subtree_control").write_text(f"+{one}")
            except OSError as error:
                refused[one] = error.strerror
        if refused:
            others = len((base / "cgroup.procs").read_text().split())
            raise NotPossible(f"controllers not enabled: {refused}; {others} other processes are in the group above")
        return f"controllers {' '.join(wanted)}"

    def start(self) -> str:
        enter = "".join(f"echo $$ >'{group}/cgroup.procs' && " for group in self.groups if group.name.endswith("-node"))
        inner = ("sh", str(HERE / "node.sh"), str(self.root), *self.kept())
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--fork", "--kill-child")
        log = (HERE / "node.log").open("wb")
        command = ("sh", "-c", f'{enter}exec "$@"', "sh", "unshare", *spaces, *inner)
        self.init = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        children = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children")
        state = ""
        for _ in range(90):
            time.sleep(1)
            if self.init.poll() is not None:
                raise Failed(f"the node ended: {(HERE / 'node.log').read_text(errors='replace')[-600:]}")
            with contextlib.suppress(OSError, ValueError):
                self.pid = int(children.read_text().split()[0])
            if self.pid:
                state = self.sh("systemctl is-system-running", limit=20)[1].strip()
                if state in ("running", "degraded"):
                    failed = self.sh("systemctl --failed --no-legend --plain", name="node-failed-units.txt")[1]
                    names = [line.split()[0] for line in failed.splitlines() if line.strip()]
                    return f"systemd is {state}; failed: {' '.join(names) or 'none'}"
        raise Failed(f"systemd does not come up: {state[-300:]}")

    def sh(self, command: str, **options: Any) -> tuple[int, str]:
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd")
        variables = environment(Path("/opt/gpunode"), Path("/root"))
        inside = ("env", "-i", *(f"{key}={value}" for key, value in variables.items()), "sh", "-c", command)
        return self.trial.run(("nsenter", "--target", str(self.pid), *spaces, "--", *inside), **options)

    def stop(self) -> None:
        """All processes of the node end with its first one; its groups go."""
        if self.init and self.init.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or self.init.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.init.wait(20)
        for group in self.groups:
            if group.name.endswith("-self"):
                (group.parent / "cgroup.procs").write_text(str(os.getpid()))
            below = sorted(group.rglob("*/"), key=lambda path: -len(path.parts))
            for folder in (*below, group):
                with contextlib.suppress(OSError):
                    folder.rmdir()


def capable(bit: int) -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.M)
    return bool(found and int(found[1], 16) >> bit & 1)


# ---------------------------------------------------------------- on the node


PLACES = "/etc /usr/bin /usr/lib/systemd"
TREE = f"find {PLACES} -xdev -type f -not -path '*.cache' -not -name machine-id -exec sha256sum {{}} + | sort"


def on_the_node(trial: Trial, node: Node) -> None:
    run = node.sh
    before = run(TREE)[1]
    run("systemd-run --unit=repository python3 -m http.server 8000 --bind 127.0.0.1 --directory /opt/repository")

    def provision() -> str:
        status, text = run(
            "python3 -m gpunode provision --local -c /root/gpunode.yml --yes", name="node-provision.txt", limit=300
        )
        if status:
            raise Failed(f"exit status {status}: {text.strip()[-600:]}")
        return last(text)

    def again() -> str:
        _, text = run(
            "python3 -m gpunode provision --local -c /root/gpunode.yml --yes", name="node-again.txt", limit=200
        )
        if "nothing to do" not in text:
            raise Failed(text.strip()[-600:])
        return "nothing to do"

    def verify() -> None:
        words = "python3 -m gpunode verify --local -c /root/gpunode.yml --format json 2>/root/verify.log"
        status, text = run(words, name="node-verify.json", limit=300)
        try:
            checks = json.loads(text)["hosts"][0]["checks"]
        except (ValueError, LookupError):
            trial.check("node.verify", lambda: fail(f"exit status {status}: {text[-400:]}"))
            return
        for one in checks:
            trial.check(f"verify {one['id']}", lambda one=one: as_row(one))

    def reads(verb: str, *words: str) -> str:
        command = " ".join(gpunode(verb, "--local", *words, "--format", "json"))
        status, text = run(
            f"{command} 2>/root/log || {{ status=$?; cat /root/log; exit $status; }}",
            name=f"node-{verb}.json",
            limit=240,
        )
        if status not in (0, 1, 3):
            raise Failed(f"exit status {status}: {text.strip()[-400:]}")
        return f"exit status {status}"

    def uninstall() -> str:
        status, text = run("python3 -m gpunode uninstall --local --yes", name="node-uninstall.txt", limit=200)
        if status:
            raise Failed(f"exit status {status}: {text.strip()[-600:]}")
        changed = set(run(TREE)[1].splitlines()) ^ set(before.splitlines())
        if changed:
            raise Failed(f"other files than before: {sorted(changed)[:6]}")
        return "files as before"

    if trial.check("node.provision", provision):
        trial.check("node.second-run", again)
    verify()
    trial.check("node.doctor", lambda: reads("doctor"))
    containers(trial, node)
    trial.check("node.accept", lambda: reads("accept", "--level", "quick"))
    trial.check("node.uninstall", uninstall)
    kubernetes(trial, node)
    run("journalctl --no-pager -n 400", name="node-journal.txt")


def containers(trial: Trial, node: Node) -> None:
    """Programs that compute in containers, by each way to a GPU, and whether they still do after a daemon-reload."""
    run = node.sh

    def image() -> str:
        status, text = run(f"image.sh {IMAGE}", name="node-image.txt")
        if status:
            raise Failed(text.strip()[-400:])
        return IMAGE

    def computes(name: str, words: str) -> str:
        status, text = run(f"ctr run --rm {words} {IMAGE} trial-{name} {ADD}", name=f"node-{name}.txt")
        return trial.judged(status, text)

    def own() -> str:
        status, text = run(ADD, name="node-add.txt")
        trial.bare = text.strip()
        return computed(status, text)

    def reload() -> str:
        run(
            f"ctr run -d --cgroup /system.slice/trial.scope --device nvidia.com/gpu=0 {IMAGE} trial-long "
            "/bin/busybox sleep 600"
        )
        try:
            status, text = run(f"systemctl daemon-reload && ctr task exec --exec-id one trial-long {ADD}")
            return f"after systemctl daemon-reload: {trial.judged(status, text)}"
        finally:
            run("ctr task kill -s KILL trial-long; sleep 1; ctr task rm -f trial-long; ctr container rm trial-long")

    def pod(handler: str) -> str:
        status, text = run(f"pod.sh {handler} {IMAGE}", name=f"node-pod-{handler}.txt")
        return trial.judged(status, text)

    trial.check("node.computes", own)
    if not (node.root / "opt/nvidia/nvidia-ctk").exists():
        trial.check("containers", lambda: impossible("the payload has no nvidia-ctk: build it with GPUNODE_VENDOR"))
        return
    if trial.check("containers.image", image):
        trial.check("containers.cdi", lambda: computes("cdi", "--device nvidia.com/gpu=0"))
        words = "--runc-binary /usr/bin/nvidia-container-runtime --env NVIDIA_VISIBLE_DEVICES=all"
        trial.check("containers.runtime", lambda: computes("runtime", f"{words} --env NVIDIA_DRIVER_CAPABILITIES=all"))
        trial.check("containers.daemon-reload", reload)
        trial.check("containers.pod", lambda: pod("nvidia"))


def kubernetes(trial: Trial, node: Node) -> None:
    """A cluster of this one node: whole GPUs, then slices of them, and pods that compute side by side."""
    run = node.sh

    def start() -> str:
        status, text = run(f"cluster.sh {(KUBERNETES / 'version').read_text()}", name="cluster-start.txt", limit=300)
        if status == 77:
            raise NotPossible(last(text))
        if status:
            raise Failed(f"exit status {status}: {text.strip()[-500:]}")
        return last(text)

    def gpunode(words: str, name: str) -> None:
        status, text = run(f"python3 -m gpunode {words}", name=name, limit=300)
        if status:
            raise Failed(f"gpunode {words.split(' -')[0]}: exit status {status}: {text.strip()[-600:]}")

    def offered(name: str, sharing: str) -> str:
        (node.root / "root/cluster.yml").write_text(f"{spec}kubernetes: {{}}\nsharing: {sharing}\n")
        gpunode("provision --local -c /root/cluster.yml --yes", f"{name}-provision.txt")
        gpunode(f"kube apply {asked}", f"{name}-apply.txt")
        gpunode(f"kube verify {asked}", f"{name}-verify.txt")
        offers = "kubectl get node gpu-node -o 'jsonpath={.status.allocatable}'"
        return last(run(offers, name=f"{name}-offers.json")[1])

    def pods(name: str, count: int) -> str:
        return trial.judged(*run(f"pods.sh {count} {IMAGE}", name=f"{name}-pods.txt", limit=150))

    if not KUBERNETES.exists():
        trial.check("cluster", lambda: impossible("the payload has no kubelet: build it with GPUNODE_KUBERNETES"))
        return
    spec, asked = (HERE / "node.yml").read_text(), "-c /root/cluster.yml --nodes kubernetes.io/hostname=gpu-node"
    if trial.check("cluster.start", start):
        ways = (("whole", "{strategy: none}", 1), ("time-slicing", "{strategy: time-slicing, replicas: 4}", 3))
        for name, sharing, count in ways:
            way = f"cluster-{name}"
            if trial.check(f"cluster.{name}", partial(offered, way, sharing)):
                trial.check(f"cluster.{name}.pods", partial(pods, way, count))
        trial.check("cluster.mps", lambda: impossible("MPS sets the card's compute mode: no setting is changed here"))


def computed(status: int, text: str) -> str:
    if status or "added" not in text:
        raise Failed(f"exit status {status}: {text.strip()[-500:]}")
    return last(text)


def as_row(check: dict[str, Any]) -> str:
    if check["status"] in ("failed", "refused", "pending"):
        raise Failed(check["message"])
    if check["status"] in ("not-proven", "skipped"):
        raise NotPossible(check["message"])
    return f"{check['status']}: {check['message']}" if check["status"] != "passed" else str(check["message"])


def last(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was printed"])[-1]


def fail(why: str) -> str:
    raise Failed(why)


def impossible(why: str) -> str:
    raise NotPossible(why)


# ---------------------------------------------------------------- all of it


def write_record(trial: Trial, path: Path) -> None:
    """One archive, redacted by the same rules as that of gpunode selftest."""
    sys.path.insert(0, str(HERE / "site"))
    from gpunode.core.selftest.record import Capture, SelftestRecord, redacted

    rows = json.dumps({"seconds": round(time.monotonic() - trial.began), "checks": trial.rows}, indent=1)
    some = {name: Capture(text=text, exit=status, seconds=s) for name, (text, status, s) in trial.captures.items()}
    record = SelftestRecord(captures={"results.json": Capture(text=rows), **some}, root=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in redacted(record).items():
            data = text.encode()
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), int(time.time())
            archive.addfile(member, io.BytesIO(data))


@contextlib.contextmanager
def as_it_was(trial: Trial) -> Iterator[None]:
    """The settings of the card, before and after."""
    before: dict[str, str] = {}

    def read() -> str:
        before.update(settings(trial))
        return f"{len(before)} settings"

    def compare() -> str:
        after = settings(trial)
        changed = {key: (value, after.get(key)) for key, value in before.items() if after.get(key) != value}
        if changed:
            raise Failed(f"changed: {changed}")
        return f"{len(before)} settings as before"

    trial.check("card.settings-before", read)
    try:
        yield
    finally:
        if before:
            trial.check("card.settings-after", compare)


def main(record: Path) -> int:
    trial, home = Trial(), HERE / "home"
    home.mkdir(exist_ok=True)
    node = Node(trial, HERE / "root")
    try:
        with as_it_was(trial):
            on_this_machine(trial, home)
            steps = (("node.tree", node.lay_out), ("node.cgroup", node.control_groups), ("node.start", node.start))
            # without controllers a node starts as well, and says what it lacks
            done = [trial.check(name, step) or name == "node.cgroup" for name, step in steps]
            if all(done):
                on_the_node(trial, node)
    finally:
        node.stop()
        write_record(trial, record)
    count = {
        status: sum(row["status"] == status for row in trial.rows) for status in ("passed", "failed", "not possible")
    }
    digest = hashlib.sha256(record.read_bytes()).hexdigest()[:12]
    print(f"{', '.join(f'{n} {status}' for status, n in count.items())}; {record} ({digest}), redacted", flush=True)
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
