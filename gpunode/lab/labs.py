"""Labs: named groups of nodes.  up, down and reset are here; nodes.py is one node, sources.py what it is made from."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict, Unpack

from gpunode.core.errors import GpunodeError, InputError, InterruptedByUser
from gpunode.core.grouped import grouped
from gpunode.core.late import dataclass, replace
from gpunode.edge.signals import handling_sigterm, ignoring_interrupts
from gpunode.lab import files, hardware, images, machine, network, nodes
from gpunode.lab.kubernetes import cluster
from gpunode.lab.machine import Log
from gpunode.lab.nodes import Node
from gpunode.lab.packages import RepositoryInfo
from gpunode.lab.sources import disk_of, image_of, own_sources, spec_sources
from gpunode.lab.vm import devices

MOST_NODES = 20
AT_ONCE = 4  # containers started side by side: more only queue behind podman's own locks


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A group of nodes that are up, and the files that describe them."""

    name: str
    nodes: tuple[Node, ...]
    directory: Path

    @property
    def inventory(self) -> Path:
        return self.directory / "hosts.yml"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        return self.directory / "ssh_config"

    @property
    def spec(self) -> Path:
        return self.directory / "gpunode.yml"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, of a lab with Kubernetes."""
        return self.directory / "kubeconfig"

    def run(self, node: Node | str, command: str, *, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a shell command on a node as root, over ssh."""
        name = node if isinstance(node, str) else node.name
        return machine.run("ssh", "-F", str(self.ssh_config), name, command, check=False, stdin=stdin)

    def reset(self, *names: str, log: Log = print) -> None:
        """Put nodes (all, when none is named) back to their fresh image, with the same name and address."""
        reset(names or [node.name for node in self.nodes], log=log)

    def down(self, *, log: Log = print) -> None:
        """Take the nodes away, those that are still there."""
        down([node.name for node in nodes.load_nodes() if node.lab == self.name], log=log)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


# ---------------------------------------------------------------- up


class Shape(TypedDict, total=False):
    """What a node is like; what is not given is a Debian 12 with Python, containerd, Docker and one H100.

    `gpus` are words such as `h100` or `10de:2204`, one per GPU; `engines` some of `containerd` and `docker`;
    `kubernetes` a folder with its programs or a version: the nodes are a cluster then.  `vendor` is a folder with
    programs of NVIDIA's container toolkit, which run in place of the stubs.  `image` is podman's, of a committed node.
    A `machine` `vm` boots by itself.
    """

    distro: str
    gpus: Sequence[str]
    nouveau: bool
    engines: Sequence[str]
    python: bool
    real_driver: bool
    kubernetes: str
    vendor: str
    image: str
    machine: str


def up(count: int = 1, *, name: str = "gpunode", log: Log = print, **shape: Unpack[Shape]) -> Lab:
    """See to it that the nodes NAME-1 to NAME-count are up, as described; those that are already stay as they are.

    Raises RefusedError where a lab cannot run, InputError for what it does not know, InterruptedByUser after Ctrl-C;
    whatever it had begun is removed then.
    """
    request = _request(name, **shape)
    _check(request, count)
    machine.refuse_unfit_machine(nodes=count)
    if request.kubernetes:
        request = replace(request, kubernetes=str(cluster.programs(request.kubernetes, log=log)))
    with _all_or_nothing(name, log):
        image, info = image_of(request.variant, log)
        disk = disk_of(request.variant, image, log)
        return _up(replace(request, image=request.image or image, disk=disk), count, info, log)


@contextlib.contextmanager
def _all_or_nothing(lab: str, log: Log) -> Iterator[None]:
    """After a failure, Ctrl-C or SIGTERM, remove the nodes of that lab that this process was making."""
    with handling_sigterm():
        try:
            yield
        except BaseException as error:
            with ignoring_interrupts(), machine.lock("state", log=log):
                mine = [n.name for n in nodes.load_nodes() if n.lab == lab and n.maker == os.getpid()]
                _take_away(mine, log)
            if isinstance(error, KeyboardInterrupt):
                raise InterruptedByUser("interrupted: what was started has been removed") from error
            raise


def _request(name: str, **shape: Unpack[Shape]) -> Node:
    """The node as asked for: without address, image and number."""
    gpus = tuple(gpu for gpu in shape.get("gpus", ("h100",)) if gpu != "none")
    engines = tuple(shape.get("engines", images.ENGINES))
    vendor = str(Path(shape["vendor"]).resolve()) if shape.get("vendor") else ""
    node = Node(name=name, lab=name, address="", engines=engines, gpus=gpus, vendor=vendor)
    return replace(node, **{key: value for key, value in shape.items() if key not in ("gpus", "engines", "vendor")})  # type: ignore[arg-type]


def _check(template: Node, count: int) -> None:
    if not 1 <= count <= MOST_NODES:
        raise InputError(f"{count} nodes", expected=f"1 to {MOST_NODES}")
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", template.name):
        raise InputError(
            f"lab name {template.name!r}", expected="a small letter, then up to 39 small letters, digits and hyphens"
        )
    if template.vendor and not (Path(template.vendor) / "nvidia-ctk").is_file():
        raise InputError(
            f"{template.vendor} has no nvidia-ctk", expected="a folder with programs of NVIDIA's container toolkit"
        )
    _ = template.variant  # raises InputError for a distro or engine it does not know
    if template.machine == "vm":
        devices.describe(template.gpus)
        return
    with tempfile.TemporaryDirectory() as folder:  # raises InputError for a GPU it does not know
        hardware.write_hardware(Path(folder), template.gpus, nouveau=template.nouveau)


def platform(name: str, *, log: Log = print, **shape: Unpack[Shape]) -> dict[str, Any]:
    """Prepare a node that another program (Molecule's podman driver) starts, and say how: an entry of its `platforms`.

    The program needs the environment variable CONTAINERS_CONF, `machine.containers_conf()`.  `down([name])` removes the
    node with all that belongs to it.
    """
    request = _request(name, **shape)
    _check(request, 1)
    machine.refuse_unfit_machine(nodes=1)
    image, info = image_of(request.variant, log)
    node = replace(request, image=image)
    with machine.lock("state", log=log):
        url = _serve(node, log)
        _ensure_key()
        nodes.remove([name])
        nodes.save(replace(node, sources=spec_sources(info, node.distro, url)))
        nodes.prepare(node, own_sources(info, node.distro), url, machine.places().repositories)
    return nodes.platform(node)


def _up(template: Node, count: int, info: RepositoryInfo, log: Log) -> Lab:
    with machine.lock("state", log=log):
        _remove_abandoned(log)
        url = _serve(template, log)
        _ensure_key()
        sources = {} if _is_real(template) else spec_sources(info, template.distro, url)
        control = next(iter(_reserve([cluster.describe(template)])), None) if template.kubernetes else None
        names = [f"{template.lab}-{number}" for number in range(1, count + 1)]
        new = _reserve([replace(template, name=name, sources=sources) for name in names])
    if control:
        log(f"starting the control plane of Kubernetes: {control.name}")
        started = cluster.start_control_plane(control, own_sources(info, control.distro), url)
        nodes.save(replace(started, maker=os.getpid()))  # it goes with its nodes, should they not come up
    if new:
        log(f"starting {len(new)} node{'s'[: len(new) > 1]}: {' '.join(node.name for node in new)}")
    machine.weigh(len(nodes.load_nodes()))
    _make_all(new, info, url)
    if control:
        nodes.save(started)
    if template.kubernetes and new:
        cluster.connect(_ready(template.lab))
    with machine.lock("state", log=log):
        _write_files(log)
    return load_lab(template.name)


def _is_real(node: Node) -> bool:
    """Whether its packages are the distribution's own, and none the lab's stubs."""
    return node.real_driver or node.machine == "vm"


def _serve(node: Node, log: Log) -> str:
    """Serve the package repository, by an image of such a node; its URL."""
    image = images.serving_image(node.variant, node.image, log=log)
    return network.ensure_repository(image, machine.places().repositories, network.ensure_network(), log=log)


def _reserve(wanted: Iterable[Node]) -> list[Node]:
    """Write down those of the machines that are missing, before any is made."""
    have = {node.name: node for node in nodes.load_nodes()}
    new: list[Node] = []
    for node in wanted:
        if node.name in have:
            _check_same(have[node.name], node)
            continue
        new.append(replace(node, maker=os.getpid(), address=_free_address([*have.values(), *new])))
        nodes.save(new[-1])
    return new


def _free_address(others: Iterable[Node]) -> str:
    """One that a node keeps when its container starts again; from above, as podman chooses from below."""
    taken = {node.address for node in others}
    return next(str(one) for one in reversed([*network.ensure_network().hosts()]) if str(one) not in taken)


def _check_same(node: Node, template: Node) -> None:
    shape = ("distro", "engines", "python", "real_driver", "gpus", "nouveau", "kubernetes", "vendor", "machine")
    other = [f"{key} {getattr(node, key)!r}" for key in shape if getattr(node, key) != getattr(template, key)]
    if other:
        raise InputError(
            f"{node.name} is there already, with {', '.join(other)}",
            fix=f"gpunode lab down {node.name}, or choose another --name",
        )
    if node.maker:
        raise GpunodeError(f"{node.name} is being made by process {node.maker}", fix="choose another --name, or wait")


def _make_all(new: Sequence[Node], info: RepositoryInfo, url: str) -> None:
    """Make nodes side by side; the first failure, or Ctrl-C, stops them all: nodes are kept once each is up."""
    stop = threading.Event()
    made: list[Node] = []

    def make(node: Node) -> None:
        if stop.is_set():
            return
        nodes.prepare(node, own_sources(info, node.distro), url, machine.places().repositories)
        if node.kubernetes:
            cluster.prepare(node)
        started = nodes.start(node)
        nodes.wait_until_up(started, given_up=stop.is_set)
        if node.kubernetes and not stop.is_set():
            cluster.join(started)
        if stop.is_set():
            return
        made.append(replace(started, maker=0, host_keys=nodes.read_host_keys(started)))

    _side_by_side(make, new, stop)
    with ignoring_interrupts():
        for node in made:
            nodes.save(node)


def _side_by_side(act: Callable[[Node], None], some: Sequence[Node], stop: threading.Event) -> None:
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        try:
            for future in [pool.submit(act, node) for node in some]:
                future.result()
        except BaseException:
            stop.set()
            with ignoring_interrupts():  # those that run must have ended before their nodes are removed
                pool.shutdown(cancel_futures=True)
            raise


def _ensure_key() -> None:
    key = machine.places().key
    if not key.exists():
        machine.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpunode lab", "-f", str(key))


# ---------------------------------------------------------------- what is there


def load_lab(name: str) -> Lab:
    """The lab of that name, as it is now."""
    members = tuple(node for node in _ready(name) if not node.control)
    return Lab(name=name, nodes=members, directory=machine.places().state / "labs" / name)


def _ready(lab: str) -> list[Node]:
    """The machines of a lab that are not being made, the control plane's among them."""
    return [node for node in nodes.load_nodes() if node.lab == lab and not node.maker]


def find(names: Iterable[str]) -> list[Node]:
    """The nodes of these names; a lab's name stands for all its nodes.  Raises InputError for one that is not there."""
    have = nodes.load_nodes()
    found: dict[str, Node] = {}
    for name in names:
        meant = [node for node in have if name in (node.name, node.lab)]
        if not meant:
            known = ", ".join(node.name for node in have)
            raise InputError(f"there is no node {name!r}", expected=f"one of {known}" if known else "a node that is up")
        found |= {node.name: node for node in meant}
    return list(found.values())


def ssh_config() -> Path:
    """The ssh_config of all nodes of all labs."""
    return machine.places().state / "ssh_config"


def _write_files(log: Log) -> None:
    """Inventory and the like: for all nodes together in the lab's own folder, and for each lab in labs/NAME."""
    state = machine.places().state
    by_lab = grouped((node.lab, node) for node in nodes.load_nodes() if node.host_keys)
    for folder in (state / "labs").glob("*/"):
        if folder.name not in by_lab:
            shutil.rmtree(folder)
    _write_set(state, by_lab, log)
    for lab, members in by_lab.items():
        _write_set(state / "labs" / lab, {lab: members}, log)
        for control in (node for node in members if node.control):
            machine.write(state / "labs" / lab / "kubeconfig", cluster.kubeconfig(control).read_text())


def _write_set(directory: Path, by_lab: dict[str, list[Node]], log: Log) -> None:
    machines = [node for some in by_lab.values() for node in some]
    members = [node for node in machines if not node.control]
    # A node has a gpunode_spec of its own only where the lab mixes releases whose repositories differ.
    first = members[0].sources if members else {}
    shared = {name: source for name, source in first.items() if all(n.sources.get(name) == source for n in members)}
    specs = {node.name: {"sources": node.sources} for node in members if node.sources != shared}
    addresses = {lab: {node.name: node.address for node in some if not node.control} for lab, some in by_lab.items()}
    by_name = {node.name: node.address for node in machines}
    keys = [(node.name, node.address, node.host_keys) for node in machines]
    key, known_hosts = machine.places().key, directory / "known_hosts"
    machine.write(directory / "hosts.yml", files.inventory(addresses, specs, key=key, known_hosts=known_hosts))
    machine.write(directory / "known_hosts", files.known_hosts(keys))
    machine.write(directory / "ssh_config", files.ssh_config(by_name, key=key, known_hosts=known_hosts))
    _write_spec(directory, files.spec(shared), log)


def _write_spec(directory: Path, text: str, log: Log) -> None:
    """Write gpunode.yml, unless somebody has edited it: `.gpunode.yml` is what the lab wrote last."""
    spec, written = directory / "gpunode.yml", directory / ".gpunode.yml"
    before = written.read_text() if written.exists() else ""
    if spec.exists() and spec.read_text() not in (before, text):
        if before != text:
            log(f"{spec} has been edited and stays as it is; the lab's package sources are now in {written}")
    else:
        machine.write(spec, text)
    machine.write(written, text)


# ---------------------------------------------------------------- down, reset


def down(names: Iterable[str] = (), *, everything: bool = False, log: Log = print) -> list[str]:
    """Take nodes away, and give back their names.

    With the last one go the network, the repository's server, and every file but the cache.
    """
    names = list(names)
    if not names and not everything:
        return []
    with machine.lock("state", log=log), ignoring_interrupts():
        doomed = [node.name for node in (nodes.load_nodes() if everything else find(names))]
        _remove_abandoned(log)
        _take_away(doomed, log)
        return doomed


def _take_away(names: Sequence[str], log: Log) -> None:
    nodes.remove(names)
    nodes.release_emulation(log=log)
    if nodes.load_nodes():
        _write_files(log)
    elif shutil.which("podman"):
        network.remove_if_unused()
        _forget()


def _forget() -> None:
    """Remove what only describes nodes; the locks stay, somebody may be waiting for one."""
    places = machine.places()
    for path in (places.nodes, places.state / "labs"):
        shutil.rmtree(path, ignore_errors=True)
    written = ("hosts.yml", "known_hosts", "ssh_config", "gpunode.yml", ".gpunode.yml")
    for name in (*written, "id_ed25519", "id_ed25519.pub"):
        (places.state / name).unlink(missing_ok=True)


def reset(names: Iterable[str], *, log: Log = print) -> list[Node]:
    """Put nodes back to their fresh image, with the same name and address; their host keys are new."""
    found = []
    for node in find(names):
        if node.control:
            log(f"{node.name} stays: a new one would not know the cluster any more")
            continue
        with _all_or_nothing(node.lab, log):
            found.append(_reset(node, log))
    return found


def _reset(node: Node, log: Log) -> Node:
    log(f"resetting {node.name}")
    image, info = image_of(node.variant, log)
    disk = disk_of(node.variant, image, log)
    with machine.lock("state", log=log):
        url = _serve(replace(node, image=image), log)
        nodes.remove([node.name])
        sources = {} if _is_real(node) else spec_sources(info, node.distro, url)  # they may have been built again
        fresh = replace(node, image=image, disk=disk, host_keys=(), maker=os.getpid(), sources=sources)
        nodes.save(fresh)
    _make_all([fresh], info, url)
    if node.kubernetes:
        cluster.connect(_ready(node.lab))
    with machine.lock("state", log=log):
        _write_files(log)
    return find([node.name])[0]


def _remove_abandoned(log: Log) -> None:
    """Half-made nodes of a process that was killed."""
    left = [node.name for node in nodes.load_nodes() if node.abandoned]
    if left:
        log(f"removing what an interrupted `lab up` left: {' '.join(left)}")
        nodes.remove(left)
