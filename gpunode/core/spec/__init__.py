"""gpunode.yml: what the user wants, as frozen dataclasses.  Each key's `option` documents it."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from gpunode.core.errors import InputError
from gpunode.core.grammar import IMAGE, PROXY
from gpunode.core.late import dataclass
from gpunode.core.meant import meant
from gpunode.core.numbers import whole
from gpunode.core.spec.accept import AcceptSpec, check_accept
from gpunode.core.spec.gpu import PCI_ID, GpuSpec, check_gpu
from gpunode.core.spec.kubernetes import KubernetesSpec, SharingSpec
from gpunode.core.spec.module_parameters import check_parameters
from gpunode.core.spec.option import check_grammar, check_least, check_text, key_in, option
from gpunode.core.spec.rollout import RolloutSpec, check_rollout
from gpunode.core.spec.runfile import RunfileSpec, check_runfiles
from gpunode.core.spec.source import SourceSpec, check_sources
from gpunode.core.spec.toolkit import FabricSpec, ToolkitSpec, check_toolkit
from gpunode.core.spec.tuning import NEVER, TuningSpec, check_tuning


@dataclass(frozen=True, kw_only=True)
class BundleSpec:
    """A bundle as `gpunode bundle sources` names it; plan and provision compare it before anything is touched."""

    url: str = option("", "where the bundle is: URL, or file:// of a folder that this machine has, too")
    path: str = option("", "the bundle's folder on the machine that runs gpunode, where url is one of the nodes alone")
    sha256: str = option("", "SHA-256 of its manifest.json")


def check_bundle(bundle: BundleSpec) -> None:
    """Raises InputError."""
    expected = "64 hex digits: the SHA-256 of the bundle's manifest.json"
    fix = "gpunode bundle sources DIR --url URL writes this part of the file"
    if bundle.url or bundle.path or bundle.sha256:
        check_text("bundle.sha256", bundle.sha256, r"[0-9a-f]{64}", expected, fix=fix)


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """For which GPUs a machine is prepared that has none yet: a golden image, or a server before its cards come."""

    gpus: tuple[str, ...] = option((), "PCI ids of GPUs to come, such as ['10de:2330']")
    nvswitches: tuple[str, ...] = option((), "PCI ids of NVSwitches to come, such as ['10de:22a3']")
    nvlink5_fabric: bool = option(False, "the machine will have the NVLink 5 fabric of HGX B200 and later")
    load: bool = option(True, "false loads nothing now and leaves a unit that loads and proves it at the first boot")


def check_image(image: ImageSpec) -> None:
    """Raises InputError for what is no PCI id."""
    expected = "PCI ids of NVIDIA in small letters, such as '10de:2330' (in quotes)"
    fix = "lspci -nn -d 10de: shows them on a machine that has the GPU; gpunode solve --gpu NAME knows names"
    for pci_id in (*image.gpus, *image.nvswitches):
        check_text("image", pci_id, PCI_ID, expected, fix=fix, verb="has")


@dataclass(frozen=True, kw_only=True)
class DriverSpec:
    """Which NVIDIA driver, and where from."""

    branch: str = option(
        "auto",
        "driver branch: auto (the newest long-term or production branch that fits), lts (the newest long-term one), a "
        "number such as 580, distro (the distribution's own), or none",
    )
    flavour: Literal["auto", "open", "proprietary"] = option("auto", "kernel modules: auto, open or proprietary")
    modules: Literal["auto", "precompiled", "dkms"] = option(
        "auto",
        "kernel modules: precompiled (built by the distribution or NVIDIA), dkms (built on the node), or auto "
        "(precompiled where their signature spares a MOK under Secure Boot, else dkms)",
    )
    method: Literal["auto", "packages", "runfile", "preinstalled"] = option(
        "auto", "how: auto, packages, runfile, or preinstalled (only verify what is there)"
    )
    version: str = option("", "exact driver version such as 580.178.04; empty takes the newest of the branch")
    hold: bool = option(True, "hold the driver packages against unattended upgrades")
    runfile: RunfileSpec = option(RunfileSpec(), "the file of method runfile")
    module_parameters: Mapping[str, Mapping[str, str]] = option(
        {}, "parameters of its kernel modules, such as {nvidia: {NVreg_EnableGpuFirmware: 0}}"
    )

    @property
    def number(self) -> int:
        """The branch that is asked for by its number or a version of it, 0 where none is."""
        text = self.version[:3] if self.version else self.branch
        return whole(text) if text.isdigit() else 0


@dataclass(frozen=True, kw_only=True)
class CudaSpec:
    """Which CUDA toolkits on the host itself (containers bring their own)."""

    versions: tuple[str, ...] = option(
        (), "toolkit versions to install side by side, such as ['12.8', '13.0']; newest is the newest that fits"
    )
    default: str = option("", "the version /usr/local/cuda leads to; empty means the last of versions")
    method: Literal["packages", "runfile"] = option("packages", "how: packages or runfile")
    runfiles: Mapping[str, RunfileSpec] = option({}, "the files of method runfile, by version")


@dataclass(frozen=True, kw_only=True)
class RuntimeSpec:
    """One container engine."""

    manage: Literal["auto", "install", "configure", "ignore"] = option(
        "auto",
        "auto (configure when it is installed; on a node with a kubelet only the engine it uses), install, "
        "configure (it must be installed), or ignore",
    )
    default_runtime: Literal["auto", "nvidia", "runc", "keep"] = option(
        "auto",
        "runtime of containers that name none; auto is nvidia for the engine that a kubelet uses, as its pods need it, "
        "and keep elsewhere; keep leaves the default as it is",
    )
    cdi: bool | None = option(None, "enable CDI; null leaves the engine's own default")
    cgroup_driver: Literal["auto", "systemd", "cgroupfs"] = option(
        "auto", "cgroup driver; auto follows the kubelet where there is one, else leaves it as it is"
    )


@dataclass(frozen=True, kw_only=True)
class RuntimesSpec:
    containerd: RuntimeSpec = option(RuntimeSpec(), "containerd")
    docker: RuntimeSpec = option(RuntimeSpec(), "Docker Engine")
    crio: RuntimeSpec = option(RuntimeSpec(), "CRI-O (never installed by gpunode)")
    podman: RuntimeSpec = option(
        RuntimeSpec(default_runtime="keep"),
        "Podman (never installed by gpunode): its GPUs come by CDI, not by a runtime",
    )


@dataclass(frozen=True, kw_only=True)
class VerifySpec:
    expect_gpus: int | None = option(
        None, "GPUs that each node must have, or `verify` and `provision` fail; null asks for one at least"
    )
    allow_no_gpu: bool = option(False, "accept nodes without any GPU (else exit code 3)")
    image: str = option("", "image for the container checks; empty makes a tiny local one from the node's own busybox")

    @property
    def without_gpu(self) -> bool:
        """Whether a node may be without any GPU."""
        return self.allow_no_gpu or self.expect_gpus == 0

    @property
    def allowing(self) -> str:
        """How to accept a node without any GPU; "" where a number of GPUs is expected."""
        return "if that is right: verify.allow_no_gpu: true in gpunode.yml, and plan again" * (not self.expect_gpus)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """gpunode.yml.  An empty file is a valid one: every key has a default."""

    driver: DriverSpec = option(DriverSpec(), "NVIDIA driver")
    gpu: GpuSpec = option(GpuSpec(), "settings of the GPUs")
    tuning: TuningSpec = option(TuningSpec(), "settings of the host that decide how fast its GPUs are")
    cuda: CudaSpec = option(CudaSpec(), "CUDA toolkits on the host")
    toolkit: ToolkitSpec = option(ToolkitSpec(), "NVIDIA Container Toolkit")
    fabric: FabricSpec = option(FabricSpec(), "NVLink domains and DCGM")
    runtimes: RuntimesSpec = option(RuntimesSpec(), "container engines")
    sources: Mapping[str, SourceSpec] = option(
        {}, "mirrors, by repository name: nvidia-cuda, nvidia-container-toolkit, or distribution for all the rest"
    )
    bundle: BundleSpec = option(BundleSpec(), "the bundle that nodes without a network use")
    proxy: str = option("", "HTTP proxy for the package manager on the nodes; empty means none")
    reboot: Literal["never", "if-needed", "always"] = option(
        "if-needed", "may provision reboot a node: never, if-needed, always (after a driver change)"
    )
    reboot_controller: bool = option(False, "may provision reboot the machine that it runs on itself")
    reboot_timeout: int = option(900, "seconds that a node may take to come back from a reboot")
    image: ImageSpec = option(ImageSpec(), "machines and images prepared before their GPUs are there")
    rollout: RolloutSpec = option(RolloutSpec(), "how a fleet is gone through: waves and budgets")
    verify: VerifySpec = option(VerifySpec(), "verify")
    accept: AcceptSpec = option(AcceptSpec(), "acceptance")
    sharing: SharingSpec = option(SharingSpec(), "how containers share a GPU")
    kubernetes: KubernetesSpec = option(KubernetesSpec(), "objects in the cluster")


def parse_spec(data: Any, *, where: str = "gpunode.yml") -> Spec:
    """Plain data (what a YAML loader gives) → Spec.

    Unknown keys are refused with the nearest known one, wrong types and values with the path of the key.
    Raises InputError, with all mistakes in it (`others`); each begins with `where`, unless that is "".
    """
    reader = _Reader()
    with reader.collecting():
        spec = typing.cast(Spec, reader.read(Spec, {} if data is None else data, ""))
        for rule in () if reader.mistakes else _rules(spec):  # between keys, where each is right by itself
            with reader.collecting():
                rule()
    if reader.mistakes:
        for mistake in reader.mistakes if where else ():
            mistake.place(where)
        raise InputError.all_of(reader.mistakes)
    return spec


class Whole(dict[str, Any]):
    """A mapping that replaces another one and does not merge with it."""


def merge_spec(base: Any, over: Any) -> Any:
    """Plain data merged key by key: mappings merge, everything else of `over` replaces."""
    if isinstance(base, Mapping) and isinstance(over, Mapping) and not isinstance(over, Whole):
        keys = [*base, *(k for k in over if k not in base)]
        return {
            k: merge_spec(base[k], over[k]) if k in base and k in over else (over if k in over else base)[k]
            for k in keys
        }
    return over


TOP = "the top level"


class _Reader:
    """Plain data → values of a type.  What does not fit becomes a mistake that names its key, and has its default."""

    def __init__(self) -> None:
        self.mistakes: list[InputError] = []

    @contextmanager
    def collecting(self) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            self.mistakes.append(error)

    def read(self, kind: Any, value: Any, path: str) -> Any:
        """The value as `kind` has it.  Raises InputError for one that has no parts."""
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            return self._record(kind, value, path)
        if origin is Literal:
            return _choice(inner, value, path=path)
        if origin is tuple:
            items = value if isinstance(value, list | tuple) else [value]
            return tuple(self._parts(inner[0], [(f"{path}[{i}]", i, v) for i, v in enumerate(items)]).values())
        if origin in (Mapping, dict) or kind is Mapping:
            found = {k: v for k, v in self._mapping(value, path, "").items() if v is not None}  # null removes a key
            return self._parts(inner[1], [(key_in(path, k), str(k), v) for k, v in found.items()])
        if origin in (types.UnionType, typing.Union):
            some = next(a for a in inner if a is not type(None))
            return None if value is None else self.read(some, value, path)
        return _scalar(kind, value, path=path)

    def _parts(self, kind: Any, parts: list[tuple[str, Any, Any]]) -> dict[Any, Any]:
        """(path, name, value) of each → name → value as `kind` has it, those that fit."""
        found = {}
        for path, name, value in parts:
            with self.collecting():
                found[name] = self.read(kind, value, path)
        return found

    def _record(self, kind: type, value: Any, path: str) -> Any:
        if value is None:
            return kind()
        hints, fields = typing.get_type_hints(kind), {}
        for key, inner in self._mapping(value, path, ", ".join(hints)).items():
            with self.collecting():
                if key not in hints:
                    raise _unknown(key, hints, inner, path=path)
                fields[key] = self.read(hints[key], inner, key_in(path, key))
        return kind(**fields)

    def _mapping(self, value: Any, path: str, keys: str) -> Mapping[Any, Any]:
        if not isinstance(value, Mapping):
            expected = f"a mapping with keys of {keys}" if keys else "a mapping"
            name, first = path.rpartition(".")[2], keys.partition(",")[0]
            one = value[0] if isinstance(value, list) and value else value
            first = one if one in keys.split(", ") else first
            example = f"write it as {name}: {{{first}: …}}; " if name.isidentifier() and first else ""
            raise InputError(
                f"{path or TOP} is {value!r}",
                key=path,
                expected=expected,
                fix=f"{example}{_explained(path)}",
            )
        return value


def _unknown(key: object, known: Iterable[str], value: Any, *, path: str) -> InputError:
    if path == "tuning" and str(key) in NEVER:
        return InputError.of(f"tuning.{key}", f"is refused: it {NEVER[str(key)]}", fix="remove it")
    inside = {*value} if isinstance(value, Mapping) else set()
    if inside & {"hosts", "children"}:
        fix = "this is an inventory: give it by -i"
    elif inside and inside <= {*known}:
        fix = f"write what is in it without {key!r} around it"
    else:
        from gpunode.core.spec.reference import meant_key, reference

        near = partial(meant, str(key), known, prefix=f"{path}." if path else "")
        elsewhere = near(cutoff=0.85) or meant_key(str(key), reference(Spec), near=False)
        fix = elsewhere or near(otherwise=f"remove it; {_explained(path)}")
    listed = f"one of {', '.join(known)}"
    return InputError(f"unknown key {key_in(path, key)!r}", key=key_in(path, key), expected=listed, fix=fix)


_BOOLEANS = "YAML reads no and off as false, yes and on as true"


def _choice(choices: tuple[Any, ...], value: Any, *, path: str) -> Any:
    if value is False and "off" in choices:  # YAML reads off as no
        return "off"
    if value not in choices:
        near = meant(str(value), choices, "choose one of these")
        raise InputError.of(
            path,
            f"is {value!r}",
            expected=f"one of {', '.join(choices)}",
            fix=f"choose one of these: {_BOOLEANS}" if isinstance(value, bool) else near,
        )
    return value


def _scalar(kind: Any, value: Any, *, path: str) -> Any:
    true_or_false = isinstance(value, bool)
    if (kind is bool and true_or_false) or (kind is int and isinstance(value, int) and not true_or_false):
        return value
    if kind is str and isinstance(value, str | int) and not true_or_false:
        return str(value)
    if kind is str and isinstance(value, float):  # of an inventory, say
        raise InputError.of(
            path,
            f"is the number {value!r}",
            expected=f"a text, in quotes: YAML reads {value!r}0 as {value!r}, too",
            fix=f"write it as a text, such as '{value!r}'",
        )
    with_unit = re.fullmatch(r"(\d+) ?[a-zA-Z]+", str(value)) if kind is int else None
    fix = f"write {with_unit[1]} alone, in the unit of the key; {_explained(path)}" if with_unit else _explained(path)
    raise InputError(
        f"{path or TOP} is {value!r}",
        key=path,
        expected={bool: "true or false", str: "a text", int: "a whole number"}.get(kind, str(kind)),
        fix=f"write the word in quotes, or another one: {_BOOLEANS}" if kind is str and true_or_false else fix,
    )


def _explained(path: str) -> str:
    """Where the key, or the keys in it, are documented."""
    return f"see: gpunode explain {path.partition('[')[0]}".rstrip()


def _rules(spec: Spec) -> Iterator[Callable[[], None]]:
    """What has to hold of and between values that fit each by itself; each raises InputError."""
    yield partial(_check_branch, spec.driver.branch)
    yield partial(check_accept, spec.accept)
    yield partial(check_bundle, spec.bundle)
    yield partial(check_image, spec.image)
    yield partial(check_parameters, spec.driver.module_parameters)
    yield partial(check_gpu, spec.gpu)
    yield partial(check_tuning, spec.tuning)
    yield partial(check_least, "reboot_timeout", spec.reboot_timeout, 1, "seconds, 1 or more")
    yield partial(check_grammar, "proxy", spec.proxy, PROXY)
    yield partial(check_grammar, "verify.image", spec.verify.image, IMAGE)
    yield partial(check_rollout, spec.rollout)
    versions = r"(\d{3}\.\d+(\.\d+)?)?", "a version such as 580.178.04"
    fix = "a number such as 580 is driver.branch" if re.fullmatch(r"\d{3}", spec.driver.version or "") else ""
    yield partial(check_text, "driver.version", spec.driver.version, *versions, fix=fix)
    yield partial(_check_cuda, spec.cuda)
    yield partial(check_least, "verify.expect_gpus", spec.verify.expect_gpus, 0, "a number of GPUs, or null")
    yield partial(check_toolkit, spec.toolkit, spec.fabric)
    yield partial(check_runfiles, spec.driver.runfile, spec.cuda.runfiles, spec.cuda.versions)
    yield partial(check_sources, spec.sources)


def _check_branch(branch: str) -> None:
    words = ("auto", "lts", "distro", "none")
    if branch not in words and not re.fullmatch(r"\d{3}", branch):
        number = re.search(r"(?<!\d)\d{3}(?!\d)", branch)  # R580, nvidia-driver-580-open
        near = f"did you mean '{number[0]}'?" if number else meant(branch, words, "gpunode solve shows what fits")
        raise InputError.of(
            "driver.branch",
            f"is {branch!r}",
            expected=f"{', '.join(words)}, or three digits such as 580",
            fix="a whole version is driver.version" if re.match(r"\d{3}\.", branch) else near,
        )


def _check_cuda(cuda: CudaSpec) -> None:
    expected = "newest, or MAJOR.MINOR such as '12.8' (in quotes: YAML reads 12.10 as 12.1)"
    for version in cuda.versions:
        longer = re.match(r"\d+\.\d+\.", version)
        fix = "leave out what is behind MAJOR.MINOR" if longer else "write both numbers, such as '12.8'"
        near = meant(version, ["newest"], cutoff=0.5, otherwise=fix)
        check_text("cuda.versions", version, r"\d+\.\d+|newest", expected, fix=near, verb="has")
    if cuda.default and cuda.default not in cuda.versions:
        raise InputError.of(
            "cuda.default",
            f"is {cuda.default!r}",
            expected=f"one of cuda.versions ({', '.join(cuda.versions) or 'none'})",
        )
