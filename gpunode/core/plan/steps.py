"""The one table of steps: every option of a role, in the order in which a plan runs them.

Whatever names a step is made from these rows or reads them: the plan, the playbook, the tasks in roles/, the pages and
ansible-doc (tools/docs/collection.py).  All values are empty by default, and an empty one does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
    gpu_settings,
    gpudirect,
    host_settings,
    kernel_argument,
    memlock,
    package,
    preflight,
    repository,
    runfile,
    sharing,
    smoke,
    sysctl,
    toolkit,
)
from gpunode.core.items.item import Found, Item, ItemKey, Question, StateKind, StepKind, Wanted
from gpunode.core.late import dataclass, replace
from gpunode.core.model import Plan, Problem


@dataclass(frozen=True, kw_only=True)
class Role:
    """A role of the collection, in a sentence, and in more of them where one is not enough."""

    name: str
    short: str
    about: str = ""
    page: str = ""  # of the documentation, as its README links it
    wanted: tuple[Callable[[Question], Found], ...] = ()  # its items


@dataclass(frozen=True)
class StepRow:
    """A step that a plan may have: `role` and `option` name the variable that holds its value."""

    role: str
    option: str
    title: str
    kind: StepKind
    about: str = ""  # of this option; without it what its shape says
    prepared: str = ""  # the title on a machine that waits for its GPU
    again: tuple[str, ...] = ()  # options whose steps make this one due again
    results_of: tuple[str, ...] = ()  # options of the role whose results the action gets, for check mode

    @property
    def variable(self) -> str:
        """What the value is called among those of `gpunode.node.plan`."""
        return f"{self.role}_{self.option}"


ROLES = (
    Role(name="preflight", short="Makes sure that a node is the one that the plan was made for"),
    Role(
        name="driver",
        short="Installs the NVIDIA driver, holds it, and makes it run",
        wanted=(first_boot.wanted, repository.wanted, driver.wanted, kernel_argument.wanted),
    ),
    Role(
        name="fabric",
        short="Installs DCGM, names the nodes of an NVLink domain to IMEX, and makes the settings of the GPUs",
        wanted=(gpu_settings.wanted, host_settings.wanted, gpudirect.wanted, fabric.wanted),
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
        wanted=(engine.wanted, sysctl.tuned, memlock.wanted),
    ),
    Role(name="verify", short="Proves by real use that the GPUs work, in containers too"),
)


EXPECT = "gpunode_expect"  # host variable of generated plays: the node and the files that the plan was made for
VALUES = "gpunode_values"  # group variable of generated plays: the values in which hosts of a play differ
DONE = "gpunode_done_"  # beginning of the names under which tasks register their results
PLAN = "gpunode_plan"  # what gpunode.node.plan registers in the roles
STEPS = (
    StepRow("preflight", "recover", "Finish or undo what an interrupted run left", preflight.RECOVER),
    StepRow("preflight", "expect", "Make sure that this is the node the plan was made for", preflight.EXPECT),
    StepRow(
        "preflight",
        "fetch",
        "Fetch NVIDIA's installers and compare their checksums",
        preflight.FETCH,
        about="Installers to have on the node, with the right checksum, before anything is changed.",
    ),
    StepRow("driver", "sources", "Set up the repository of the driver", file.STEP),
    StepRow("driver", "uninstall", "Take off the driver that NVIDIA's runfile installed", runfile.UNINSTALL_STEP),
    StepRow(
        "driver",
        "repositories",
        "Set up the repositories that the driver's packages come from",
        package.REPOSITORIES,
        about="Packages that set up repositories, such as epel-release, in a transaction of their own before the next.",
    ),
    StepRow("driver", "packages", "Install the NVIDIA driver and the headers of every kernel", package.STEP),
    StepRow(
        "driver",
        "runfile",
        "Run NVIDIA's installer, and build its modules for every kernel",
        runfile.STEP,
        about="Installers to run.",
    ),
    StepRow("driver", "upgrades", "Keep unattended upgrades off the driver", file.STEP),
    StepRow("driver", "files", "Keep nouveau off the GPU", file.STEP),
    StepRow("driver", "first_boot", "Leave what loads and proves the driver at the first boot", first_boot.STEP),
    StepRow(
        "driver",
        "activate",
        "Load the NVIDIA driver and start its services",
        driver.ACTIVATION,
        prepared="Have the first boot with a GPU load the driver, and rebuild the initramfs",
        again=("driver.packages", "driver.runfile", "driver.files"),
        results_of=("packages", "files"),
    ),
    StepRow("fabric", "sources", "Set up the repository of DCGM", file.STEP),
    StepRow("fabric", "packages", "Install DCGM", package.STEP),
    StepRow("fabric", "files", "Write the nodes of the NVLink domain, and the settings of the GPUs", file.STEP),
    StepRow(  # IMEX reads its nodes when it starts
        "fabric", "activate", "Start what manages the fabric and the GPUs", fabric.ACTIVATION, again=("fabric.files",)
    ),
    StepRow("cuda", "sources", "Set up the repository of CUDA", file.STEP),
    StepRow("cuda", "packages", "Install the CUDA toolkit", package.STEP),
    StepRow("cuda", "runfile", "Run the installers of the CUDA toolkits", runfile.STEP, about="Installers to run."),
    StepRow("cuda", "files", "Put CUDA on the PATH of login shells", file.STEP),
    StepRow("cuda", "activate", "Choose the default CUDA toolkit", activation.STEP),
    StepRow("toolkit", "sources", "Set up the repository of the NVIDIA Container Toolkit", file.STEP),
    StepRow("toolkit", "packages", "Install the NVIDIA Container Toolkit", package.STEP),
    StepRow("toolkit", "files", "Write the files of the NVIDIA Container Toolkit", file.STEP),
    StepRow("toolkit", "config", "Set the options of the NVIDIA Container Toolkit", toolkit.STEP),
    StepRow(  # no instance outlives the driver that made it
        "sharing",
        "mig",
        "Cut the GPUs into MIG instances, now and at every boot, or make them whole again",
        sharing.MIG_STEP,
        again=("driver.packages",),
    ),
    StepRow("sharing", "mps", "Have programs share the GPUs by MPS, or no longer", sharing.MPS_STEP),
    StepRow("runtime", "sources", "Set up the repository of the container engines", file.STEP),
    StepRow("runtime", "packages", "Install the container engines", package.STEP),
    StepRow("runtime", "files", "Have kernel modules loaded, settings made and GPU devices linked at boot", file.STEP),
    StepRow(
        "runtime",
        "activate",
        "Load kernel modules, make settings, link GPU devices and start the container engines",
        engine.ACTIVATION,
    ),
    StepRow("runtime", "edits", "Give the container engines the nvidia runtime", engine.STEP),
    StepRow(
        "runtime",
        "cdi",
        "Make the CDI specification of the GPUs, and keep it fresh",
        cdi.STEP,
        again=("driver.packages", "toolkit.packages", "sharing.mig"),
    ),
    StepRow(
        "verify",
        "smoke",
        "Prove it with real use of the GPU",
        smoke.STEP,
        prepared="Prove what can be proven without the GPU",
    ),
)
BY_ID = {f"{row.role}.{row.option}": row for row in STEPS}


def item_types(base: type[Item] = Item) -> Iterator[type[Item]]:
    """All types of items of the steps."""
    for kind in base.__subclasses__():
        yield kind
        yield from item_types(kind)


# the kinds of things other than files and packages that gpunode changes, as the items that bring them about say
KINDS: Mapping[str, StateKind] = {
    back.name: back for kind in item_types() for back in kind.BACK if isinstance(back, StateKind)
}


def wanted(question: Question) -> Wanted:
    """The state that the spec and its solution ask of a node; values only, nothing is compared yet."""
    found = [one for role in ROLES for make in role.wanted for one in make(question)]
    items, problems = by_key(one for one in found if isinstance(one, Item))
    if question.solution.driver and not question.spec.image.load:
        items = {one.key: one for one in first_boot.without_loading(items, question.solution.driver, question)}
    return Wanted(
        items=items,
        problems=(*(one for one in found if isinstance(one, Problem)), *problems),
        warnings=tuple(one for one in found if isinstance(one, str)),
    )


def by_key(found: Iterable[Item]) -> tuple[dict[ItemKey, Item], list[Problem]]:
    """The items by their keys: what two parts want alike is one, and what they want otherwise is refused."""
    items: dict[ItemKey, Item] = {}
    problems = []
    for one in found:
        have = items.setdefault(one.key, one)
        reasons = tuple(dict.fromkeys((*have.reasons, *one.reasons)))
        if replace(have, reasons=reasons) == replace(one, reasons=reasons):
            items[one.key] = replace(one, reasons=reasons)
            continue
        asked = one.ASKED_BY or have.ASKED_BY
        problems.append(
            Problem(
                what=f"{one.name} is wanted twice by the role {one.role}: {have.wanted}, and {one.wanted}",
                fix=f"change {asked} in gpunode.yml" if asked else "this is an error in gpunode: report it",
            )
        )
    return items, problems


def role_variables(plan: Plan) -> dict[str, Any]:
    """`<role>_<option>` for every option there is: the step's literal value, or empty."""
    return {row.variable: row.kind.shape.empty for row in STEPS} | {
        f"{step.role}_{step.option}": step.value for step in plan.steps
    }
