"""The NVIDIA Container Toolkit's part of the wanted state: its packages and its own config.toml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

from gpunode.core.edits.engines.toolkit import toolkit_target
from gpunode.core.edits.target import probed_files, problem_of, texts
from gpunode.core.engines import TOOLKIT_CONFIG as CONFIG
from gpunode.core.errors import GpunodeError
from gpunode.core.items.file import FILES
from gpunode.core.items.item import Found, HostCase, Item, KeyOf, Question, StepKind
from gpunode.core.items.package import NoPackage, PackageItem
from gpunode.core.late import dataclass, fields, regex, replace
from gpunode.core.model import Edit, NodeFacts, Problem, Reason
from gpunode.core.spec import Spec, parse_spec
from gpunode.core.spec.toolkit import ToolkitConfigSpec
from gpunode.core.validation import Shape, flag, mapping, text

_ARCHIVED = "https://github.com/NVIDIA/nvidia-docker"


def _key(kind: Any, doc: str) -> Shape:
    """A key of the spec (its type or None) as one of the role option."""
    [kind] = [one for one in get_args(kind) if one is not type(None)]
    return flag(doc) if kind is bool else text(doc, choices=get_args(kind))


_KINDS = get_type_hints(ToolkitConfigSpec)
SHAPE = mapping(
    f"Settings of {CONFIG}, by the keys of C(toolkit.config) in gpunode.yml.",
    **{one.name: _key(_KINDS[one.name], one.metadata["doc"]) for one in fields(ToolkitConfigSpec)},
)
_BY_MOUNTS = "accept_nvidia_visible_devices_as_volume_mounts"
_BOUND = regex(r"\+docker(\d[\d.]*)")  # 2.0.3+docker18.09.2-1 asks for that docker-ce and no other


@dataclass(frozen=True, kw_only=True)
class ToolkitConfig(Item):
    """The settings in the toolkit's own file.  `edit` is worked out on the file as it is now."""

    NAME = CONFIG
    ASKED_BY = "toolkit.config"
    BACK = (FILES,)
    WANTED = "configured"
    IN_WORDS = True
    role: str = "toolkit"
    option: str = "config"
    settings: Mapping[str, bool | str]
    edit: Edit

    def actual(self, facts: NodeFacts) -> str:
        return "to be edited" if self.edit.changes or facts.unfinished else self.wanted

    def request(self, case: HostCase) -> Mapping[str, Any]:
        return self.settings

    def changes(self, key_of: KeyOf) -> Iterator[tuple[str, bytes | None]]:
        yield from self.edit.changes.items()


def wanted(question: Question) -> Found:
    """The settings in the toolkit's own file, where any are asked for; its packages, and those that go for them.

    An nvidia-docker2 that is bound to a version of docker-ce makes apt refuse everything once docker-ce is newer: it
    goes with the first packages that are installed, those of the driver.
    """
    facts, spec, solution = question.facts, question.spec, question.solution
    by_mounts = facts.kubernetes.present and "volume-mounts" in spec.kubernetes.device_plugin.device_list_strategy
    settings = {**({_BY_MOUNTS: True} if by_mounts else {}), **spec.toolkit.config.settings}
    if by_mounts and not settings[_BY_MOUNTS]:
        what = f"device_list_strategy volume-mounts with toolkit.config.{_BY_MOUNTS}: false: pods would get no GPUs"
        yield Problem(what=what, fix="take one of both out of gpunode.yml")
    if settings:
        edit = config_edit(facts, settings)
        yield from edit.problems
        reasons = (*edit.reasons, *config_hints(facts, spec))
        if by_mounts and _BY_MOUNTS not in spec.toolkit.config.settings:
            strategy = "kubernetes.device_plugin.device_list_strategy has volume-mounts, which the runtime ignores"
            reasons = (*reasons, Reason(what=_BY_MOUNTS, why=f"{strategy} unless that is set"))
        yield ToolkitConfig(settings=settings, edit=edit, reasons=reasons)
    toolkit = solution.toolkit
    if toolkit is None:
        return
    for package in toolkit.packages:
        yield PackageItem(role="toolkit", package=package)
    for name in toolkit.remove:
        found = facts.packages.get(name)
        bound = _BOUND.search(found.version) if found else None
        why = (
            f"asks for docker-ce {bound[1]} and no other: Docker cannot be upgraded while it is installed"
            if bound
            else ""
        )
        reasons = (Reason(what=name, why=why, source=_ARCHIVED),) if bound else ()
        early = bound and solution.driver and solution.driver.packages
        yield NoPackage(role="driver" if early else "toolkit", package=name, reasons=reasons)


STEP = StepKind(shape=SHAPE, action="edit_file", argument="toolkit")


def config_edit(facts: NodeFacts, settings: Mapping[str, Any]) -> Edit:
    """What changes in the toolkit's file as the probe read it; what stands against it is a Problem of the Edit."""
    try:
        target = toolkit_target(settings)
        return target.configure(texts(probed_files(facts.files, target.files)))
    except GpunodeError as error:
        problem = problem_of(error)
        return Edit(problems=(replace(problem, fix=problem.fix or "fix the file, or take the key out"),))


def config_hints(facts: NodeFacts, spec: Spec) -> tuple[Reason, ...]:
    """What the toolkit's settings should rather be on this node; nothing is set that gpunode.yml does not name."""
    config, hints = spec.toolkit.config, []
    rootless = bool(facts.rootless_docker)
    if rootless and config.no_cgroups is None and config.mode not in ("cdi", "jit-cdi"):
        hints.append("a rootless engine cannot set device cgroups: set toolkit.config.no_cgroups, or mode cdi")
    if config.no_cgroups and config.mode not in ("cdi", "jit-cdi") and not rootless:
        hints.append(
            "no_cgroups: an engine that runs as root denies the GPU then («Unknown Error» of NVML); it is for rootless"
        )
    source = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
    return tuple(Reason(what="toolkit config", why=hint, source=source) for hint in hints)


def toolkit_settings(value: Mapping[str, Any]) -> dict[str, bool | str]:
    """The role's value as settings, checked as gpunode.yml is.  Raises InputError."""
    return parse_spec({"toolkit": {"config": dict(value)}}, where="toolkit_config").toolkit.config.settings
