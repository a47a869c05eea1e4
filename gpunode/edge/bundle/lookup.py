"""A plan's packages in the indexes of the repositories that they come from, read by this machine before anything is
touched."""

from __future__ import annotations

import fnmatch
import shutil
from collections.abc import Callable, Sequence

from gpunode.core.bundle.index import Index, deb_index, lacking, newest_as_asked, newest_of_all, rpm_index
from gpunode.core.bundle.upstream import Upstream
from gpunode.core.errors import GpunodeError
from gpunode.core.grouped import grouped
from gpunode.core.knowledge import Knowledge
from gpunode.core.late import dataclass
from gpunode.core.model import NodeFacts, PackageWant, Plan, Problem, Repository, Solution
from gpunode.core.model.node import DEB_ARCHS
from gpunode.core.openpgp import fingerprints
from gpunode.edge.bundle import apt, rpm
from gpunode.edge.bundle.store import Web

KeyOf = Callable[[Repository], bytes]  # b"" where it is not known
TRIES, TIMEOUT = 1, 20  # a repository that this machine does not reach is no fault of the plan


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a look-up came to: what is missing, which repositories could not be read, the driver that would come."""

    problems: tuple[Problem, ...] = ()
    unread: tuple[str, ...] = ()
    driver: str = ""  # the newest version of its branch that its repository has


class Indexes:
    """Each index is read once; where the key of its repository is known, its signature is compared before."""

    def __init__(self, knowledge: Knowledge, key_of: KeyOf = lambda repository: b"") -> None:
        self._knowledge, self._key_of = knowledge, key_of
        self._read: dict[tuple[str, str, bool], Index | GpunodeError] = {}

    def look_up(
        self, facts: NodeFacts, solution: Solution, plan: Plan, sources: Sequence[Repository], proxy: str, told: str
    ) -> Found:
        """The packages that the plan installs, in NVIDIA's repositories or their mirrors; if `told`, those it names."""
        problems: list[Problem] = []
        unread: list[str] = []
        newest = ""
        by_name = {repository.name: repository for repository in sources}
        for name, wants in _wanted(solution, plan, self._knowledge, told).items():
            index = self.index(by_name[name], facts, proxy) if name in by_name else None
            if isinstance(index, GpunodeError):
                unread.append(f"{name}, whose index was not read: {index.what}")
            elif index is not None:
                driver = solution.driver if solution.driver and solution.driver.repository == name else None
                stream = driver.stream if driver else ""
                problems += lacking(wants, index, stream)
                newest = newest_as_asked(driver.packages, index, stream) if driver else newest
        return Found(problems=tuple(problems), unread=tuple(unread), driver=newest)

    def newest(self, wants: Sequence[PackageWant], repository: Repository, facts: NodeFacts, proxy: str = "") -> str:
        """The newest version that the repository has of all these packages, "" where they are there as asked for."""
        index = self.index(repository, facts, proxy)
        if isinstance(index, GpunodeError) or not any(lacking(wants, index)):
            return ""
        return newest_of_all([want.name for want in wants], index)

    def index(self, repository: Repository, facts: NodeFacts, proxy: str = "") -> Index | GpunodeError:
        """The index of a repository for a node, or why it cannot be read from here."""
        row = self._knowledge.distro(facts.distro.key, facts.distro.made_from)
        deb = row is not None and row.family in ("ubuntu", "debian")
        known = (repository.url, facts.arch, deb)
        if known not in self._read:
            try:
                key = self._key_of(repository) if shutil.which("gpgv") else b""  # without, the node alone compares
                trusted = (repository.fingerprint,) if repository.fingerprint else fingerprints(key) if key else ()
                upstream = Upstream(
                    name=repository.name, url=repository.url, fingerprints=trusted, signs=repository.signs
                )
                self._read[known] = read_index(upstream, facts.arch, deb=deb, proxy=proxy, keys=(key,) if key else ())
            except GpunodeError as error:
                self._read[known] = error
            except Exception as error:  # whatever a foreign index makes fail, it is one that could not be read
                self._read[known] = GpunodeError(f"its index is broken: {type(error).__name__}: {error!s:.200}")
        return self._read[known]


def read_index(upstream: Upstream, arch: str, *, deb: bool, proxy: str = "", keys: Sequence[bytes] = ()) -> Index:
    """The index of a flat repository of apt, or of one of rpm; without keys no signature is compared.

    Raises GpunodeError.
    """
    web, name, url = Web(proxy, tries=TRIES, timeout=TIMEOUT), upstream.name, upstream.url
    if deb:
        release = apt.signed_release(upstream, keys, web) if keys else apt.unsigned_release(upstream, web)
        apt.check_time(release, upstream)
        debs, day = apt.read_lists(upstream, arch, release, web), apt.release_day(release)
        return deb_index(debs, repository=name, url=url, arch=DEB_ARCHS[arch], date=day)
    lists = rpm.read_rpm(upstream, keys, web, kinds=rpm.NAMES, named_by="sources", compare=bool(keys))
    return rpm_index(lists.packages, lists.modules, repository=name, url=url, arch=arch, date=lists.date)


def _wanted(solution: Solution, plan: Plan, knowledge: Knowledge, told: str) -> dict[str, list[PackageWant]]:
    """Repository → what the plan installs from it; nothing of what comes from the distribution."""
    steps = [step.value.get("install", ()) for step in plan.steps if step.option == "packages"]
    installed = {(one["name"], one.get("version", "")) for install in steps for one in install}
    of_distribution = knowledge.packages["distribution"]["names"]
    return grouped(
        (part.repository, want)
        for part in (solution.driver, solution.fabric, solution.cuda, solution.toolkit)
        if part and part.repository
        for want in part.packages
        if (want.name, want.version) in installed and (not told or want.name in told)
        if not any(fnmatch.fnmatchcase(want.name, pattern) for pattern in of_distribution)
    )
