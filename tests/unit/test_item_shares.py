"""Every kind of item has a share of its step's value: what a kind forgets is named here."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.core import items
from gpunode.core.edits import RuntimeRequest
from gpunode.core.facts import parse_probe
from gpunode.core.items.activation import Enabled, Masked, Module, ServiceItem
from gpunode.core.items.cdi import Specification
from gpunode.core.items.cuda import Default
from gpunode.core.items.driver import Built, LoadedFlavour, LoadedParameters, Version
from gpunode.core.items.engine import Configured
from gpunode.core.items.file import File, KeyFile
from gpunode.core.items.first_boot import Armed, FirstBootProgram
from gpunode.core.items.gpu_containers import Links
from gpunode.core.items.gpu_settings import UNIT as GPU_UNIT
from gpunode.core.items.gpu_settings import Clocks, Ecc, PowerDefault, Setting
from gpunode.core.items.host_settings import UNIT as HOST_UNIT
from gpunode.core.items.host_settings import Acs, Governor
from gpunode.core.items.item import Back, HostCase, Item, StepKind, merged, step_value
from gpunode.core.items.kernel_argument import KernelArgument
from gpunode.core.items.memlock import Memlock
from gpunode.core.items.package import NoPackage, PackageItem
from gpunode.core.items.runfile import Installed, Uninstalled
from gpunode.core.items.sharing import MigItem, MigProgram, MpsSettings, Threads
from gpunode.core.items.sysctl import Sysctl
from gpunode.core.items.toolkit import ToolkitConfig
from gpunode.core.model import DriverState, Edit, NodeFacts, PackageWant, PciLink, Repository, Runfile, Solution
from gpunode.core.model.journal import JournalSnapshot, Scope
from gpunode.core.plan.steps import KINDS, ROLES, STEPS, StepRow
from gpunode.core.spec import parse_spec
from gpunode.core.validation import check_value, flag, mapping, pairs, texts

PROBES = Path(__file__).parents[1] / "cases" / "probes"
REPOSITORY = Repository(name="nvidia-cuda", url="https://example.org/")
SAMPLES: tuple[Item, ...] = (
    Module(role="fabric", module="nvidia_uvm"),
    ServiceItem(role="runtime", unit="docker"),
    Enabled(role="fabric", unit="docker"),
    Armed(),
    Masked(role="fabric", unit="nvidia-imex.service"),
    Default(version="12.8"),
    Version(version="595.91.07", asked="595.91.07"),
    LoadedFlavour(flavour="open"),
    LoadedParameters(parameters={"nvidia": {"NVreg_OpenRmEnableUnsupportedGpus": "1"}}),
    Built(option="packages", kernel="6.1.0-40-amd64", flavour="open"),
    Configured(asked=RuntimeRequest(runtime="docker"), edit=Edit()),
    File(role="driver", path="/etc/docker/daemon.json", text="a"),
    KeyFile(role="driver", option="sources", path="/usr/share/keyrings/a.asc", repository=REPOSITORY),
    FirstBootProgram(value={"activate": {"load": ["nvidia"]}}, sha256="0" * 64),
    Links(),
    Setting(title="persistence mode", field="persistence", value="Enabled"),
    Clocks(title="locked clocks", field="clocks", value="900", most=900),
    PowerDefault(title="power limit", field="power_limit", value="default"),
    Ecc(title="ECC", field="ecc_current", value="Enabled"),
    Governor(governor="performance"),
    Acs(slot="0000:00:01.0"),
    KernelArgument(word="iommu=pt"),
    Memlock(unit="docker.service"),
    PackageItem(role="toolkit", package=PackageWant(name="nvidia-container-toolkit")),
    NoPackage(role="toolkit", package="nvidia-container-toolkit-base"),
    Installed(role="driver", runfile=Runfile(name="NVIDIA.run", version="595.91.07", arch="x86_64")),
    Uninstalled(),
    Specification(units={"service": "[Service]\n", "path": "[Path]\n"}),
    MigItem(slot="0000:17:00.0", profiles=()),
    MigProgram(value={"labels": True}, sha256="0" * 64),
    MpsSettings(value={"remove": True}),
    Threads(replicas=4),
    Sysctl(setting="net.ipv4.ip_forward", value="1"),
    ToolkitConfig(settings={"no_cgroups": True}, edit=Edit()),
)
NOTHING = ("Built",)  # the packages or the installer, which are always asked for, build it
ROWS = {(row.role, row.option): row for row in STEPS}
ACTIVATE = tuple(row for row in STEPS if row.option == "activate")


def kinds(base: type[Item] = Item) -> Iterator[type[Item]]:
    """All kinds of items of the product; what several of them begin from is none."""
    for module in pkgutil.iter_modules(items.__path__):
        importlib.import_module(f"{items.__name__}.{module.name}")
    for kind in base.__subclasses__():
        begins = kind.__module__ == Item.__module__ or kind.__name__.startswith("_")
        if kind.__module__.startswith(items.__name__) and not begins:
            yield kind
        yield from kinds(kind)


def home(kind: Any) -> str:
    """Where a kind, or what makes its items, is written."""
    return kind.__module__.replace(".", "/") + ".py"


def makers() -> Iterator[Any]:
    """What makes items out of a question, in all modules of the product."""
    hints = {"question": "Question", "return": "Found"}
    for name in [one.name for one in pkgutil.iter_modules(items.__path__)]:
        module = importlib.import_module(f"{items.__name__}.{name}")
        own = [one for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__]
        yield from (one for one in own if getattr(one, "__annotations__", {}) == hints)


SOURCE = "".join(path.read_text() for path in Path(items.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("make", list(makers()), ids=lambda make: f"{home(make)}: {make.__name__}")
def test_what_makes_items_is_in_a_row_of_the_steps(make: Any) -> None:
    rows = [one for role in ROLES for one in role.wanted]
    assert make in rows, "add it to the `wanted` of its role in gpunode/core/plan/steps.py"


@pytest.mark.parametrize("kind", [kind for kind in kinds() if not [*kinds(kind)]], ids=lambda kind: kind.__name__)
def test_something_makes_items_of_a_kind(kind: type[Item]) -> None:
    assert re.search(rf"(?<!class )\b{kind.__name__}\b", SOURCE), f"`wanted` of {home(kind)} does not yield it"


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
def test_a_kind_says_how_it_goes_back_or_why_it_cannot(kind: type[Item]) -> None:
    assert bool(kind.BACK) != kind.STAYS.startswith("cannot go back, because "), f"{home(kind)}: it needs BACK or STAYS"
    for back in kind.BACK:
        assert type(back).undo is not Back.undo, f"{back.name} of {kind.__name__} has no undo, its way back"
        assert KINDS.get(back.name, back) == back, f"{back.name} of {kind.__name__} is another kind's, too"


def test_a_kind_of_record_without_its_way_back_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match=r"Back \(widget\) has no undo\(journal, scope\), its way back"):
        Back(name="widget").undo(JournalSnapshot(), Scope(records=(), known=()))


def case_of(*wanted: Item) -> HostCase:
    """A node that has nothing of it; the units of the settings run."""
    roles = {row.role for row in STEPS}
    units = {ServiceItem(role=role, unit=u).key: "active, enabled" for role in roles for u in (GPU_UNIT, HOST_UNIT)}
    facts = NodeFacts(driver=DriverState(runfile="580.65.06"), pcie=(PciLink(slot="0000:00:01.0", acs="0x1d"),))
    return HostCase(
        facts=facts,
        spec=parse_spec({}),
        solution=Solution(),
        templates={},
        items={item.key: item for item in wanted},
        have={item.key: item.actual(facts) for item in wanted} | units,
        key_of=lambda repository: b"key",
    )


def holds(value: Any, share: Mapping[str, Any]) -> bool:
    """Whether all of a share is in the value."""
    return share in value if isinstance(value, list) else all(value[key] == one for key, one in share.items())


def test_there_is_a_sample_of_every_kind() -> None:
    assert {type(item) for item in SAMPLES} == set(kinds()), "SAMPLES of this file lack these"


@pytest.mark.parametrize("item", SAMPLES, ids=lambda item: type(item).__name__)
def test_a_kind_has_a_share_of_its_step_that_the_step_takes(item: Item) -> None:
    case = case_of(item)
    if item.within:  # another one's share has it
        assert type(item).request is Item.request
        return
    share = item.request(case)
    assert bool(share) == (type(item).__name__ not in NOTHING), f"{type(item).__name__} asks nothing of its step"
    row = ROWS[item.role, item.option]
    value = step_value(case, row.kind, row.role, row.option, [item])
    check_value(row.variable, value, row.kind.shape)
    assert not share or holds(value, share)


@pytest.mark.parametrize("row", ACTIVATE, ids=lambda row: row.variable)
@pytest.mark.parametrize(
    "item", [one for one in SAMPLES if one.option == "activate"], ids=lambda item: type(item).__name__
)
def test_every_activate_step_takes_every_kind_that_is_activated(row: StepRow, item: Item) -> None:
    moved = replace(item, role=row.role)
    case = case_of(moved)
    share = moved.request(case)
    value = step_value(case, row.kind, row.role, row.option, [moved])
    check_value(row.variable, value, row.kind.shape)
    assert share and holds(value, share)


@pytest.mark.parametrize("row", STEPS, ids=lambda row: row.variable)
def test_a_step_takes_a_share_or_raises(row: StepRow) -> None:
    for item in SAMPLES:
        case = case_of(moved := replace(item, role=row.role, option=row.option))
        if item.within or not row.kind.shape.keys:
            continue
        share = moved.request(case)
        if share.keys() <= row.kind.shape.keys.keys():
            value = step_value(case, row.kind, row.role, row.option, [moved])
            assert not share or holds(value, share)
        else:
            with pytest.raises(ValueError, match="no key of the step"):
                step_value(case, row.kind, row.role, row.option, [moved])


def test_what_another_item_has_names_an_item_of_the_same_step() -> None:
    within = {(one.role, one.option, one.within) for one in SAMPLES if one.within}
    assert within <= {(*one.key,) for one in SAMPLES}


def test_shares_are_merged_in_the_order_of_the_shape_and_contradictions_raise() -> None:
    shape = mapping("", units=texts(""), set=pairs("", ".*", ".*"), now=flag(""))
    shares = ({"set": {"a": "1"}}, {"units": ["x"]}, {"units": ["y", "x"], "set": {"b": "2"}, "now": True})
    value = merged(shape, {"now": False}, shares)
    assert value == {"units": ["x", "y"], "set": {"a": "1", "b": "2"}, "now": True} and list(value) == [*shape.keys]
    with pytest.raises(ValueError, match="another set"):
        merged(shape, {}, ({"set": {"a": "1"}}, {"set": {"a": "2"}}))


def test_a_step_whose_value_is_made_of_no_item_has_that_of_its_row() -> None:
    kind = StepKind(shape=flag(""), action="edit_file", argument="recover", base=lambda case, role: True)
    assert step_value(case_of(), kind, "preflight", "recover", ()) is True


# of these no recorded node has anything to compare with: tests of their own give them facts
NO_RECORD = {
    *("Acs", "Armed", "FirstBootProgram", "Governor", "KernelArgument", "KeyFile", "LoadedParameters"),
    *("Masked", "Memlock", "MigProgram", "MpsSettings", "Threads"),
}


def test_the_probe_of_some_recorded_node_sends_what_a_kind_compares_with() -> None:
    left = {type(item).__name__: item for item in SAMPLES}
    for path in sorted(PROBES.glob("*/probe.txt")):
        facts = parse_probe(path.read_text())
        left = {name: one for name, one in left.items() if one.actual(facts) == one.actual(NodeFacts())}
    assert left.keys() - NO_RECORD == set(), (
        "their `actual` has nothing in any tests/cases/probes/*/probe.txt: add the fact"
    )
    assert NO_RECORD - left.keys() == set(), "take these out of NO_RECORD"
