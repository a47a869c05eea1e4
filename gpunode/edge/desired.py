"""Facts → plans, with all that a plan needs: spec, knowledge, templates, keys; each is loaded once."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpunode.core.errors import Exit, GpunodeError
from gpunode.core.facts import facts_hash, secret_parts
from gpunode.core.items.first_boot import SCRIPTS as FIRST_BOOT_SCRIPTS
from gpunode.core.items.gpu_containers import describe_gpu_containers
from gpunode.core.items.item import ItemKey, Question
from gpunode.core.items.package import PackageItem
from gpunode.core.items.smoke import smoke_now
from gpunode.core.knowledge import Knowledge
from gpunode.core.late import dataclass, field, replace
from gpunode.core.model import Archive, NodeFacts, Plan, Problem, Repository, Runfile, Solution
from gpunode.core.plan import make_plan, pending_items
from gpunode.core.plan.lockfile import Lock, class_of, with_lock
from gpunode.core.secrets import Secrets, is_recorded, open_recorded, seal_spec
from gpunode.core.solve import request_of, solve
from gpunode.core.spec import Spec, merge_spec, parse_spec
from gpunode.core.spec.kubernetes import SharingSpec
from gpunode.core.spec.tuning import TuningSpec
from gpunode.edge.isolate import as_error
from gpunode.node import script

if TYPE_CHECKING:
    from gpunode.edge.bundle.check import Bundles
    from gpunode.edge.bundle.lookup import Indexes

NOT_ASKED = Archive()


def load_templates() -> dict[str, str]:
    """The jinja2 templates of the package, and the node scripts that stay on a node, by file name."""
    folder = files("gpunode") / "templates"
    templates = {f.name: f.read_text(encoding="utf-8") for f in folder.iterdir() if f.name.endswith(".j2")}
    return templates | {name: script(name) for name in (*FIRST_BOOT_SCRIPTS, "mig.sh")}


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan with what it was made from: secrets are nowhere but in `secrets`, the rest refers to them."""

    plan: Plan
    facts: NodeFacts
    spec: Spec
    solution: Solution
    secrets: Secrets = field(default_factory=Secrets, repr=False)
    looked_up: frozenset[str] = frozenset()  # repositories whose index was asked for, and read or reported as unread


def with_secrets(recorded: Any, given: Any) -> Any:
    """The spec of a plan or run as it was recorded, with the secrets that the gpunode.yml `given` has at those keys."""
    return open_recorded(recorded, seal_spec(given or {})[1]) if is_recorded(recorded) else recorded


class DesiredState:
    """What nodes are to have, as one gpunode.yml (plain data) says it, and the plans that lead there.

    The inventory may say more of each host (`gpunode_spec`).  Knowledge, templates and keys are loaded once; hosts that
    are alike are planned once.
    """

    def __init__(
        self,
        spec_data: Mapping[str, object] | None = None,
        *,
        source: str = "gpunode.yml",
        to_run: bool = True,
        lock: Lock | None = None,
        look_up: bool | None = False,
        apart: Container[str] = (),
    ) -> None:
        """`to_run` False: the plans are only looked at, so a key that cannot be fetched now is a warning.

        `apart`: parts that nobody carries out (make_plan).  `look_up`: what a plan installs is looked up in the
        indexes of its repositories, where this machine reaches them; None: only where a node cannot install it.
        `lock`: exactly its versions, and no plan for what they cannot be had on.  `spec_data` becomes the data with
        references in place of secrets, which may be written down; `secrets` are those of gpunode.yml.
        """
        self._to_run = to_run
        self.lock = lock
        self._locked: dict[tuple[int, str], tuple[Spec, tuple[Problem, ...]]] = {}
        self._given = spec_data or {}
        self._source = source
        self._specs: dict[str, tuple[Spec, Secrets]] = {}
        self._solutions: dict[object, Solution] = {}
        self._planned: dict[tuple[object, ...], Planned] = {}
        self._runfiles: dict[Runfile, Problem | None] = {}
        self._keys: dict[tuple[str, str], bytes] = {}
        self._look_up, self._apart = look_up, apart
        # secrets that a recorded spec lacks may be in the inventory: then they are asked for host by host
        sealed, self.secrets = seal_spec(self._given, where=source, recorded=True)
        self.spec_data: Mapping[str, Any] = sealed
        parse_spec(self.spec_data, where=source)  # a mistake in the file is reported before any host is asked

    @classmethod
    def load(cls, path: str | Path = "gpunode.yml", *, lock: Lock | None = None) -> DesiredState:
        """That of a file.  Raises InputError."""
        from gpunode.edge.load import load_spec_data

        return cls(load_spec_data(path), source=str(path), lock=lock)

    def unlocked(self) -> DesiredState:
        """The same without the versions of a lock; what was fetched for this one serves it, too."""
        free = DesiredState(self._given, source=self._source, to_run=self._to_run, look_up=self._look_up)
        free._keys = self._keys
        return free

    @cached_property
    def knowledge(self) -> Knowledge:
        from gpunode.edge.load import load_knowledge

        return load_knowledge()

    @cached_property
    def _bundles(self) -> Bundles:
        from gpunode.edge.bundle.check import Bundles

        return Bundles()

    @cached_property
    def templates(self) -> dict[str, str]:
        return load_templates()

    def spec(self, over: Mapping[str, Any] | None = None, *, host: str = "") -> Spec:
        """gpunode.yml with the host's `gpunode_spec` merged over it, and references in place of secrets."""
        return self._spec(over, host)[0]

    def opened_spec(self) -> Spec:
        """gpunode.yml with its secrets: for what this machine fetches itself."""
        spec, secrets = self._spec(None, "")
        return secrets.open_spec(spec)

    def _spec(self, over: Mapping[str, Any] | None, host: str) -> tuple[Spec, Secrets]:
        key = json.dumps(over or {}, sort_keys=True, default=str)
        if key not in self._specs:
            where = f"gpunode_spec of {host}" if over else self._source
            sealed, secrets = seal_spec(merge_spec(self._given, over or {}), where=where)
            self._specs[key] = parse_spec(sealed, where=where), secrets
        return self._specs[key]

    def solution(
        self,
        facts: NodeFacts,
        spec: Spec,
        *,
        extra_repositories: Sequence[str] = (),
        offered_toolkit: str = "",
        archive: Archive = NOT_ASKED,
    ) -> Solution:
        """What fits the node; `extra_repositories` are ids of repositories that it will have without its doing."""
        request = replace(request_of(facts, spec), offered_toolkit=offered_toolkit, archive=archive)
        request = replace(request, repositories=(*request.repositories, *extra_repositories))
        key = repr(request)  # holds mappings, so it cannot be hashed; its text says all of it
        if key not in self._solutions:
            self._solutions[key] = solve(request, self.knowledge)
        return self._solutions[key]

    def plan(
        self, host: str, facts: NodeFacts, over: Mapping[str, Any] | None = None, *, archive: Archive = NOT_ASKED
    ) -> Planned:
        """The plan of one host; `over` is its `gpunode_spec` from the inventory, `archive` what it was asked for.

        A plan rests on nothing but the spec and what facts_hash covers, so hosts alike are worked out once.  Only its
        words about the containers that run there now are the host's own.
        """
        sealed, secrets = self._spec(over, host)
        spec, problems = self._with_lock(sealed, facts)
        facts = secrets.seal_facts(facts)
        docker = facts.containers.get("docker")  # by its containers the plan says whom a restart stops
        # self._specs keeps every spec alive: no two have the same id
        said = facts.nvml if spec.gpu.given else ()  # settings of GPUs are as the driver says them
        host_too = (facts.tuning, facts.pcie, facts.rdma) if spec.tuning != TuningSpec() else ()
        kind = (facts_hash(facts), secret_parts(facts), docker, id(spec), archive, said, repr(host_too))
        if kind not in self._planned:
            try:
                self._planned[kind] = self._plan(host, facts, spec, secrets, archive)
            except GpunodeError:
                raise
            except Exception as error:
                raise as_error(error, host=host, hide=secrets.seal) from None
        known = self._planned[kind]
        plan = replace(known.plan, host=host)
        if problems:
            plan = replace(plan, steps=(), problems=(*problems, *plan.problems))
        return replace(known, plan=describe_gpu_containers(plan, facts), facts=facts)

    def _with_lock(self, spec: Spec, facts: NodeFacts) -> tuple[Spec, tuple[Problem, ...]]:
        if self.lock is None:
            return spec, ()
        key = (id(spec), f"{class_of(facts)} {facts.kernel}")
        if key not in self._locked:
            self._locked[key] = with_lock(spec, self.lock, facts)
        return self._locked[key]

    def _plan(self, host: str, facts: NodeFacts, spec: Spec, secrets: Secrets, archive: Archive) -> Planned:
        solution = self._shared(facts, spec, self._offered(facts, spec, secrets, archive))
        solution = self._tuned(facts, spec, solution)
        missing: dict[str, str] = {}
        opened = secrets.open_spec(spec)

        def key_of(repository: Repository) -> bytes:
            try:
                return self._key(replace(repository, url=secrets.open(repository.url)), opened)
            except GpunodeError as cause:
                error = secrets.seal_error(cause)
                if self._to_run or error.exit != Exit.FAILED:  # a wrong key is refused even in a plan to look at
                    raise error from None
                missing[repository.name] = f"provision will need the key of {repository.name}: {error.what}"
                return b""

        solution = replace(solution, problems=(*solution.problems, *self._given_files(solution)))
        from gpunode.edge.load import load_support

        asked = Question(facts=facts, spec=spec, solution=solution, templates=self.templates)
        plan = make_plan(host, asked, key_of=key_of, support=load_support(), apart=self._apart)
        plan = replace(plan, warnings=(*plan.warnings, *missing.values()))
        looked_up: frozenset[str] = frozenset()
        if opened.bundle.sha256 and (found := self._bundles.problems(facts, opened, plan)):
            sealed = tuple(replace(p, what=secrets.seal(p.what), fix=secrets.seal(p.fix)) for p in found)
            plan = replace(plan, steps=(), problems=sealed)
        elif opened.bundle.sha256:
            looked_up = frozenset(one.name for one in solution.repositories)  # the bundle has been compared
        elif self._look_up and any(step.option == "packages" for step in plan.steps):
            looked_up = frozenset(one.name for one in solution.repositories)
            plan, solution = self._looked_up(facts, solution, plan, secrets, opened.proxy)
        return Planned(plan=plan, facts=facts, spec=spec, solution=solution, secrets=secrets, looked_up=looked_up)

    def _offered(self, facts: NodeFacts, spec: Spec, secrets: Secrets, archive: Archive) -> Solution:
        """The solution; where the toolkit's repository lacks the newest known, with the newest that it offers."""
        solution = self.solution(facts, spec, archive=archive)
        toolkit, opened = solution.toolkit, secrets.open_spec(spec)
        asked = self._look_up and spec.toolkit.version == "auto" and not opened.bundle.sha256
        wants = toolkit.packages if toolkit and toolkit.repository and asked else ()
        items = [PackageItem(role="toolkit", package=want) for want in wants]
        if not toolkit or not any(item.differs(item.actual(facts)) for item in items):
            return solution  # it has what is to be there: no index is read
        (repository,) = [one for one in solution.repositories if one.name == toolkit.repository]
        repository = replace(repository, url=secrets.open(repository.url))
        offered = self._indexes.newest(wants, repository, facts, opened.proxy)
        return self.solution(facts, spec, offered_toolkit=offered, archive=archive) if offered else solution

    def _looked_up(
        self, facts: NodeFacts, solution: Solution, plan: Plan, secrets: Secrets, proxy: str, told: str = ""
    ) -> tuple[Plan, Solution]:
        """The plan where all that it installs is in the indexes of its repositories, else the problems (look_up).

        The solution comes back with the driver that the repository offers.
        """
        repositories = [replace(one, url=secrets.open(one.url)) for one in solution.repositories]
        found = self._indexes.look_up(facts, solution, plan, repositories, proxy, told)
        problems = tuple(replace(p, what=secrets.seal(p.what), fix=secrets.seal(p.fix)) for p in found.problems)
        warnings = tuple(f"not resolved: repository {secrets.seal(one)}" for one in found.unread)
        if problems:
            return replace(plan, steps=(), problems=(*plan.problems, *problems)), solution
        if solution.driver and found.driver:
            solution = replace(solution, driver=replace(solution.driver, offered=found.driver))
        return replace(plan, warnings=(*warnings, *plan.warnings)), solution

    def lacking(self, planned: Planned, told: str) -> tuple[Problem, ...]:
        """Of what a node's refusal tells, all that the repositories do not have, with the nearest that they do."""
        if self._look_up is not None or not told:
            return ()
        plan, secrets = planned.plan, planned.secrets
        proxy = secrets.open_spec(planned.spec).proxy
        looked_up, _ = self._looked_up(planned.facts, planned.solution, plan, secrets, proxy, told)
        return looked_up.problems[len(plan.problems) :]

    def _shared(self, facts: NodeFacts, spec: Spec, solution: Solution) -> Solution:
        """The solution with what the host does about sharing."""
        if spec.sharing == SharingSpec():
            return solution
        from gpunode.core.sharing.host import choose_sharing
        from gpunode.edge.load import load_mig

        driver = solution.driver.version if solution.driver else facts.driver.loaded
        found = choose_sharing(facts, spec.sharing, load_mig(), self.knowledge, driver=driver)
        return replace(solution, sharing=found, problems=(*solution.problems, *found.problems))

    def _tuned(self, facts: NodeFacts, spec: Spec, solution: Solution) -> Solution:
        """The solution with what is set on the host itself."""
        if spec.tuning == TuningSpec():
            return solution
        from gpunode.core.items.tuning import choose_tuning
        from gpunode.edge.load import load_tuning

        found = choose_tuning(facts, spec.tuning, load_tuning(), self.knowledge)
        reasons, problems = (*solution.reasons, *found.reasons), (*solution.problems, *found.problems)
        return replace(solution, tuning=found, reasons=reasons, problems=problems)

    def _given_files(self, solution: Solution) -> Iterator[Problem]:
        """What is wrong with the installers that the spec names on this machine."""
        driver, cuda = solution.driver, solution.cuda
        for runfile in (*((driver.runfile,) if driver else ()), *(cuda.runfiles if cuda else ())):
            if not runfile or not runfile.path:
                continue
            if runfile not in self._runfiles:
                from gpunode.edge.runfile import check_given

                self._runfiles[runfile] = check_given(runfile.path, runfile.sha256)
            if problem := self._runfiles[runfile]:
                yield problem

    def pending(self, planned: Planned) -> dict[ItemKey, str]:
        """What differs from the spec on the planned host."""
        facts, spec, solution = planned.facts, planned.spec, planned.solution
        return pending_items(Question(facts=facts, spec=spec, solution=solution, templates=self.templates))

    def smoke(self, planned: Planned) -> dict[str, Any]:
        return smoke_now(planned.facts, planned.spec, planned.solution)

    @cached_property
    def _indexes(self) -> Indexes:
        from gpunode.edge.bundle.lookup import Indexes

        return Indexes(self.knowledge, self._known_key)

    def _known_key(self, repository: Repository) -> bytes:
        """The key that a repository's lists are compared by, b"" where none can be had now."""
        try:
            return self._key(repository, self.opened_spec())
        except GpunodeError:
            return b""

    def _key(self, repository: Repository, spec: Spec) -> bytes:
        from gpunode.edge.load import resolve_key

        known = (repository.name, repository.fingerprint or repository.key_sha256)
        if known not in self._keys:
            self._keys[known] = resolve_key(repository, spec)
        return self._keys[known]
