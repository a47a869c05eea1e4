"""The one table of steps: every option of a role, in the order in which a plan runs them.

Whatever names a role's options is made from these rows or reads them: the plan, the playbook, roles/, the documentation
of the collection (gpunode/cli/docs_collection.py).  All values are empty by default, and an empty one does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpunode.core.items import (
    activation,
    cdi,
    cuda,
    driver,
    engine,
    fabric,
    file,
    first_boot,
    package,
    preflight,
    repository,
    runfile,
    sharing,
    smoke,
    toolkit,
)
from gpunode.core.items.item import Case, Found, Item, Question, Wanted
from gpunode.core.model import Plan, Problem
from gpunode.core.validation import Shape, flag


@dataclass(frozen=True, kw_only=True)
class Role:
    """A role of the collection, in a sentence, and in more of them where one is not enough."""

    name: str
    short: str
    about: str = ""
    page: str = ""  # of the documentation, as its README links it
    wanted: tuple[Callable[[Question], Found], ...] = ()  # its items


@dataclass(frozen=True, kw_only=True)
class Row:
    """A step that a plan may have: `role` and `option` name the variable that holds its value.

    The value is the argument `argument` of the collection's action `action`.
    """

    role: str
    option: str
    title: str
    shape: Shape
    action: str
    argument: str
    about: str = ""  # of this option; without it what the shape says
    prepared: str = ""  # the title on a machine that waits for its GPU
    again: tuple[str, ...] = ()  # options whose steps make this one due again
    value: Callable[[Case, str, Sequence[Item]], Any] | None = None  # from the items that differ
    disrupts: Callable[[Case, Sequence[Item]], str] | None = None
    wanted: tuple[Callable[[Question], Found], ...] = ()  # items beside those of the role
    told: tuple[str, ...] = ()  # options of the role whose results the action is told of, for check mode

    @property
    def variable(self) -> str:
        """The play variable that holds the value."""
        return f"{self.role}_{self.option}"


ROLES = (
    Role(name="preflight", short="Makes sure that a node is the one that the plan was made for"),
    Role(
        name="driver",
        short="Installs the NVIDIA driver, holds it, and makes it run",
        wanted=(repository.wanted, driver.wanted),
    ),
    Role(
        name="fabric",
        short="Installs DCGM, names the nodes of an NVLink domain to IMEX, and starts the services of both",
        wanted=(fabric.wanted,),
    ),
    Role(name="cuda", short="Installs CUDA toolkits side by side and chooses the default one", wanted=(cuda.wanted,)),
    Role(name="toolkit", short="Installs the NVIDIA Container Toolkit", wanted=(toolkit.wanted,)),
    Role(
        name="sharing",
        short="Has containers and programs share the GPUs of a host",
        about="Has containers and programs share the GPUs of a host by MIG instances, or CUDA MPS.",
        wanted=(sharing.wanted,),
    ),
    Role(
        name="runtime",
        short="Installs container engines and registers the nvidia runtime with them",
        wanted=(engine.wanted,),
    ),
    Role(name="verify", short="Proves by real use that the GPUs work, in containers too"),
)


def _sources(role: str, title: str) -> Row:
    about = "Files of repositories, and their keys."
    return Row(
        role=role,
        option="sources",
        title=title,
        about=about,
        shape=file.SHAPE,
        action="edit_file",
        argument="files",
        value=file.value,
    )


def _packages(role: str, title: str) -> Row:
    return Row(
        role=role,
        option="packages",
        title=title,
        shape=package.SHAPE,
        action="packages",
        argument="packages",
        value=package.value,
    )


def _files(role: str, title: str) -> Row:
    return Row(
        role=role, option="files", title=title, shape=file.SHAPE, action="edit_file", argument="files", value=file.value
    )


STEPS = (
    Row(
        role="preflight",
        option="recover",
        title="Finish or undo what an interrupted run left",
        shape=flag("Whether what an interrupted run left is finished or undone."),
        action="edit_file",
        argument="recover",
    ),
    Row(
        role="preflight",
        option="expect",
        title="Make sure that this is the node the plan was made for",
        shape=preflight.SHAPE,
        action="preflight",
        argument="expect",
    ),
    Row(
        role="preflight",
        option="fetch",
        title="Fetch NVIDIA's installers and compare their checksums",
        about="Installers to have on the node, with the right checksum, before anything is changed.",
        shape=runfile.SHAPE,
        action="runfile",
        argument="fetch",
    ),
    _sources("driver", "Set up the repository of the driver"),
    Row(
        role="driver",
        option="uninstall",
        title="Take off the driver that NVIDIA's runfile installed",
        shape=runfile.UNINSTALL,
        action="runfile",
        argument="uninstall",
        value=runfile.uninstall_value,
    ),
    Row(
        role="driver",
        option="repositories",
        title="Set up the repositories that the driver's packages come from",
        about="Packages that set up repositories, such as epel-release, in a transaction of their own before the next.",
        shape=package.SHAPE,
        action="packages",
        argument="packages",
        value=package.repositories_value,
    ),
    _packages("driver", "Install the NVIDIA driver and the headers of every kernel"),
    Row(
        role="driver",
        option="runfile",
        title="Run NVIDIA's installer, and build its modules for every kernel",
        about="Installers to run.",
        shape=runfile.SHAPE,
        action="runfile",
        argument="install",
        value=runfile.value,
    ),
    _files("driver", "Keep nouveau off the GPU"),
    Row(
        role="driver",
        option="first_boot",
        title="Leave what loads and proves the driver at the first boot",
        shape=first_boot.SHAPE,
        action="first_boot",
        argument="first_boot",
        value=first_boot.value,
    ),
    Row(
        role="driver",
        option="activate",
        title="Load the NVIDIA driver and start its services",
        prepared="Have the first boot with a GPU load the driver, and rebuild the initramfs",
        shape=activation.SHAPE,
        action="activate",
        argument="activate",
        value=driver.activation_value,
        again=("driver.packages", "driver.runfile", "driver.files"),
        told=("packages", "files"),
    ),
    _sources("fabric", "Set up the repository of DCGM"),
    _packages("fabric", "Install DCGM"),
    _files("fabric", "Write the nodes of the NVLink domain, and what measures the GPUs"),
    Row(
        role="fabric",
        option="activate",
        title="Start what manages the fabric and the GPUs",
        shape=activation.SHAPE,
        action="activate",
        argument="activate",
        value=fabric.activation_value,
        again=("fabric.files",),  # IMEX reads its nodes when it starts
    ),
    _sources("cuda", "Set up the repository of CUDA"),
    _packages("cuda", "Install the CUDA toolkit"),
    Row(
        role="cuda",
        option="runfile",
        title="Run the installers of the CUDA toolkits",
        about="Installers to run.",
        shape=runfile.SHAPE,
        action="runfile",
        argument="install",
        value=runfile.value,
    ),
    _files("cuda", "Put CUDA on the PATH of login shells"),
    Row(
        role="cuda",
        option="activate",
        title="Choose the default CUDA toolkit",
        shape=activation.SHAPE,
        action="activate",
        argument="activate",
        value=cuda.activation_value,
    ),
    _sources("toolkit", "Set up the repository of the NVIDIA Container Toolkit"),
    _packages("toolkit", "Install the NVIDIA Container Toolkit"),
    _files("toolkit", "Write the files of the NVIDIA Container Toolkit"),
    Row(
        role="toolkit",
        option="config",
        title="Set the options of the NVIDIA Container Toolkit",
        shape=toolkit.SHAPE,
        action="edit_file",
        argument="toolkit",
        value=toolkit.value,
    ),
    Row(
        role="sharing",
        option="mig",
        title="Cut the GPUs into MIG instances, now and at every boot, or make them whole again",
        shape=sharing.MIG,
        action="sharing",
        argument="mig",
        value=sharing.value,
        disrupts=sharing.disruption,
        again=("driver.packages",),  # no instance outlives the driver that made it
    ),
    Row(
        role="sharing",
        option="mps",
        title="Have programs share the GPUs by MPS, or no longer",
        shape=sharing.MPS,
        action="sharing",
        argument="mps",
        value=sharing.value,
        disrupts=sharing.disruption,
    ),
    _sources("runtime", "Set up the repository of the container engines"),
    _packages("runtime", "Install the container engines"),
    _files("runtime", "Have kernel modules loaded, settings made and GPU devices linked at boot"),
    Row(
        role="runtime",
        option="activate",
        title="Load kernel modules, make settings, link GPU devices and start the container engines",
        shape=activation.SHAPE,
        action="activate",
        argument="activate",
        value=engine.activation_value,
    ),
    Row(
        role="runtime",
        option="edits",
        title="Give the container engines the nvidia runtime",
        shape=engine.SHAPE,
        action="edit_file",
        argument="runtimes",
        value=engine.value,
        disrupts=engine.disruption,
    ),
    Row(
        role="runtime",
        option="cdi",
        title="Make the CDI specification of the GPUs, and keep it fresh",
        shape=cdi.SHAPE,
        action="cdi",
        argument="cdi",
        value=cdi.value,
        again=("driver.packages", "toolkit.packages", "sharing.mig"),
    ),
    Row(
        role="verify",
        option="smoke",
        title="Prove it with real use of the GPU",
        prepared="Prove what can be proven without the GPU",
        shape=smoke.SHAPE,
        action="smoke",
        argument="smoke",
    ),
)
BY_ID = {f"{row.role}.{row.option}": row for row in STEPS}


def wanted(asked: Question) -> Wanted:
    """The state that the spec and its solution ask of a node; values only, nothing is compared yet."""
    found = [one for part in (*ROLES, *STEPS) for make in part.wanted for one in make(asked)]
    items = {one.key: one for one in found if isinstance(one, Item)}
    if asked.solution.driver and not asked.spec.image.load:
        items = {one.key: one for one in first_boot.without_loading(items, asked.solution.driver, asked)}
    return Wanted(items=items, problems=tuple(one for one in found if isinstance(one, Problem)))


def role_variables(plan: Plan) -> dict[str, Any]:
    """`<role>_<option>` for every option there is: the step's literal value, or empty."""
    return {row.variable: row.shape.empty for row in STEPS} | {
        f"{step.role}_{step.option}": step.value for step in plan.steps
    }
