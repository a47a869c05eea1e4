"""Run a tier of the tests: python .ci/tiers.py check|test|ci|all|vm.  Its last line is «N passed, N failed».

`check` is style, types and the quick unit tests; `test` has the wheel and one lab node of each engine as well.  `ci` is
`make test`, then PROMISED, then of what `all` has beyond these as much as fits, beginning elsewhere for each commit; it
prints what it left out.  A failed part does not stop the next ones.  Needs no package: `ci` starts without the virtual
environment.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
COLLECTION = "gpunode/collection/ansible_collections/gpunode/node"
LAST_START = 40 * 60  # seconds after the start of `ci` at which no part of the rest begins: the last one takes a while
LAST_END = 80 * 60  # at which the running one is stopped, and has failed
GROUPS = 8  # of the extended lab tests
# programs that some tests run, and their packages; those of MORE are none of `make test`'s
TOOLS = (
    "setpci:pciutils zsh:zsh fish:fish strace:strace busybox:busybox setfattr:attr setfacl:acl sshd:openssh-server "
    "sudo:sudo"
)
MORE = "chromium:chromium chromedriver:chromium-driver nft:nftables"
CLOSING = re.compile(r"(?:=+ )?(?:\d+ [a-z]+, )*\d+ [a-z]+(?: in [\d.]+s.*)?")
COUNT = re.compile(r"(\d+) (passed|failed|error)")


@dataclass(frozen=True)
class Part:
    """One command of a tier."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def pytest(name: str, *words: str, **environment: str) -> Part:
    return Part(name, ("python", "-m", "pytest", "-q", *words), environment)


def molecule(scenario: str) -> Part:
    return Part(f"molecule-{scenario}", ("python", "molecule/run.py", scenario))


LAB = {"GPUNODE_REQUIRE_LAB": "1"}
MANY = {"HYPOTHESIS_PROFILE": os.environ.get("HYPOTHESIS_PROFILE", "ci")}  # seven times the usual number of examples
WHEEL, ENGINES = "tests/unit/test_wheel.py", "tests/lab/test_engines.py"
QUICK = "not slow and not extended"
SHORT = "lab and not extended and not real_driver and not vm"
LONG = "lab and (extended or real_driver) and not vm"
# three files at a time: most of them wait for engines and packages most of the time
BESIDE = ("-n", "3", "--dist", "loadfile", "--durations=20", "tests/lab")

CHECK = (
    Part("lint", ("sh", ".ci/lint.sh")),
    pytest("unit", "-n", "2", "--dist", "loadfile", "tests/unit", "-m", QUICK),
)
TEST = (pytest("wheel", WHEEL), pytest("lab", "-n", "2", ENGINES, **LAB))
FIRST = Part("test", ("make", "test"))
ANSIBLE_LINT = Part(
    "ansible-lint",
    ("ansible-lint", "--offline", "--profile", "production", f"{COLLECTION}/roles", f"{COLLECTION}/playbooks"),
)
INSTALL_MOLECULE = Part("install-molecule", ("make", ".venv/.molecule"))
SCENARIOS = ("default", "docker")
PROMISED = (
    pytest("unit-slow", "-n", "2", "tests/unit", "-m", "slow and not extended", f"--ignore={WHEEL}", **MANY),
    pytest("unit-examples", "-n", "2", "tests/unit", "-m", f"hypothesis and {QUICK}", **MANY),
    pytest("lab-short", *BESIDE, "-m", SHORT, f"--ignore={ENGINES}", **LAB),
    ANSIBLE_LINT,
    INSTALL_MOLECULE,
    *map(molecule, SCENARIOS),
)
VM = pytest("vm", "-s", "tests/lab", "-m", "vm", **LAB)  # one at a time: QEMU emulates two processors
SANITY = Part("ansible-test", ("sh", ".ci/sanity.sh"))
BENCHMARKS = Part("benchmarks", ("python", "-m", "benchmarks"))


def scenarios() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml"))


def everything() -> Iterator[Part]:
    """The lab tests last: what fails before is seen before."""
    yield from (CHECK[0], ANSIBLE_LINT)
    yield pytest("unit", "-n", "2", "tests/unit", **MANY)
    yield INSTALL_MOLECULE
    yield from map(molecule, scenarios())
    yield from (SANITY, BENCHMARKS)
    yield pytest("lab", *BESIDE, "-m", "lab and not vm", **LAB)
    yield VM


def others() -> Iterator[Part]:
    """What `all` has and neither TEST nor PROMISED, in parts of some minutes."""
    files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/lab/test_*.py"))
    yield pytest("unit-extended", "-n", "2", "tests/unit", "-m", "extended", **MANY)
    for number in range(GROUPS):
        yield pytest(f"lab-extended-{number + 1}", *BESIDE[:-1], "-m", LONG, *files[number::GROUPS], **LAB)
    yield from (molecule(name) for name in scenarios() if name not in SCENARIOS)
    yield from (SANITY, BENCHMARKS)


def rotated(parts: list[Part]) -> list[Part]:
    """From another one on for each commit."""
    head = subprocess.run(("git", "rev-parse", "HEAD"), cwd=ROOT, capture_output=True, text=True, check=False).stdout
    first = int(head[:8] or "0", 16) % len(parts)
    return parts[first:] + parts[:first]


# ---------------------------------------------------------------- running them


def cpu() -> float:
    """Seconds of all that has ended; what runs in lab nodes is not among it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Run:
    """The parts of a tier, one after the other, and what came of them."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.passed = self.failed = 0
        self.failures: list[str] = []
        self.spent: dict[str, float] = {}  # seconds of CPU by part
        self.current: subprocess.Popen[str] | None = None

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def part(self, part: Part, *, limit: float | None = None) -> None:
        """Run it, with its output as it comes; stopped after `limit` seconds."""
        print(f"=== {part.name}", flush=True)
        before, spent, closing = time.monotonic(), cpu(), ""
        self.current = subprocess.Popen(
            part.command,
            cwd=ROOT,
            env=os.environ | part.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that all that it started is stopped with it
        )
        timer = threading.Timer(limit or LAST_END, self.stop)
        timer.daemon = True  # Ctrl-C does not wait for it
        if limit:
            timer.start()
        assert self.current.stdout
        for line in self.current.stdout:
            print(line, end="", flush=True)
            if CLOSING.fullmatch(line.rstrip("\n =")) and COUNT.search(line):
                closing = line
        status = self.current.wait()
        self.current = None
        timer.cancel()
        self._count(part.name, status, closing)
        self.spent[part.name] = cpu() - spent
        print(f"--- {part.name}: {time.monotonic() - before:.0f} s, {cpu() - spent:.0f} s of CPU", flush=True)

    def _count(self, name: str, status: int, closing: str) -> None:
        counts = {what: int(number) for number, what in COUNT.findall(closing)}
        failed = counts.get("failed", 0) + counts.get("error", 0)
        if status:
            self.failures.append(name)
        self.failed += failed or bool(status)
        self.passed += counts.get("passed", 0 if status or failed else 1)

    def stop(self) -> None:
        """What runs now, with all that it has started: first as Ctrl-C does, so that it cleans up."""
        if process := self.current:
            for number, patience in ((signal.SIGINT, 60), (signal.SIGTERM, 10), (signal.SIGKILL, 0)):
                try:
                    os.killpg(process.pid, number)
                    process.wait(patience)
                except subprocess.TimeoutExpired:
                    continue
                except ProcessLookupError:
                    return

    def close(self) -> int:
        if self.failures:
            print(f"=== failed: {' '.join(self.failures)}")
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        return 1 if self.failures else 0


def install(tools: str) -> None:
    """What some tests use, and are skipped without, by apt."""
    pairs = [pair.split(":") for pair in tools.split()]
    missing = [package for tool, package in pairs if not shutil.which(tool)]
    if not Path("/usr/share/misc/pci.ids").exists():
        missing.append("pci.ids")
    if not missing:
        return
    print(f"installing {' '.join(missing)} by apt-get", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command = ("apt-get", "install", "-qq", "--no-install-recommends", *missing)
    subprocess.run(("apt-get", "update", "-qq"), check=True)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    if "openssh-server" in missing and Path("/run/systemd/system").is_dir():
        # the tests start an sshd of their own; the machine's was not asked for
        subprocess.run(("systemctl", "disable", "--quiet", "--now", "ssh.service", "ssh.socket"), check=False)


def nodes() -> set[str]:
    """The lab nodes of this machine."""
    if not shutil.which("gpunode"):
        return set()
    done = subprocess.run(("gpunode", "lab", "list", "--format", "json"), capture_output=True, text=True, check=False)
    return {node["name"] for node in json.loads(done.stdout)["nodes"]} if done.returncode == 0 else set()


def check(run: Run, *options: str) -> None:
    """CHECK, and whether its unit tests take more than they may: compared with work done beside them all the while."""
    from figures import reference

    seconds, over = [reference()], threading.Event()

    def sample() -> None:
        while not over.wait(10):
            seconds.append(reference())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        for part in CHECK:
            run.part(part)
    finally:
        over.set()
        sampler.join()
    cost = run.spent["unit"] / (2 * statistics.mean(seconds))
    command = ("python", ".ci/figures.py", "--check", "--cost", f"{cost:.1f}", *(options if not run.failures else ()))
    run.part(Part("figures", command))


def run_all(run: Run, tier: str) -> None:
    if tier == "check":
        check(run, "--lower")
        return
    if os.geteuid() != 0:
        sys.exit("this needs root, because it starts systemd nodes with podman; without root there is: make check")
    before = nodes()
    try:
        if tier == "test":
            install(TOOLS)
            check(run)
            for part in TEST:
                run.part(part)
        if tier == "all":
            install(f"{TOOLS} {MORE}")
            for part in everything():
                run.part(part)
        if tier == "vm":
            run.part(VM)
        if tier == "ci":
            as_far_as_it_fits(run)
    finally:
        run.stop()
        for node in nodes() - before:  # those that were there before are somebody's own
            subprocess.run(("gpunode", "lab", "down", node), stdout=subprocess.DEVNULL, check=False)


def as_far_as_it_fits(run: Run) -> None:
    run.part(FIRST, limit=LAST_END)
    install(f"{TOOLS} {MORE}")
    for part in PROMISED:
        run.part(part, limit=LAST_END - run.elapsed())
    left = []
    for part in rotated([*others()]):
        if run.elapsed() > LAST_START:
            left.append(part.name)
        else:
            run.part(part, limit=LAST_END - run.elapsed())
    if left:
        print(f"=== not run after {run.elapsed() / 60:.0f} minutes: {' '.join(left)}")


def main(tier: str) -> int:
    os.environ["PATH"] = f"{ROOT}/.venv/bin:{os.environ['PATH']}"
    # without compiled files each of the thousand processes of a tier compiles gpunode again
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.chdir(ROOT)

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    run = Run()
    run_all(run, tier)
    print(f"=== {tier}: {run.elapsed() / 60:.1f} minutes, {cpu():.0f} s of CPU")
    return run.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
