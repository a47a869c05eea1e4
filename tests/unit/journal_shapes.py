"""Journals of many records, each of one shape: what a node prints whose history is long, or made to be."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from journal_text import AT, coded, line, packages, recall_text, state, undo_row, wrote

from gpunode.core.items.item import ABSENT
from gpunode.core.undo.journal import parse_snapshot, present_request, standing
from gpunode.core.undo.plan import UndoPlan, differences, plan_undo
from gpunode.core.undo.requests import compared, undo_requests
from gpunode.core.undo.scope import scope_of
from gpunode.core.undo.summary import summary


def sha(n: int) -> str:
    return hashlib.sha256(b"%d" % n).hexdigest()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def settings(count: int) -> str:
    names = [f"net.a{n}" for n in range(count)]
    return recall_text([state("sysctl", name, "0", "1") for name in names], states={("sysctl", n): "1" for n in names})


def modules(count: int) -> str:
    """All loaded by gpunode, and as many of which the baseline says that they were there."""
    names = [f"m{n}" for n in range(count // 2)]
    before = [f"b{n}" for n in range(count // 2)]
    journal = [
        line("baseline", id="b", driver="", modules=before),
        packages("p", added={"nvidia-open": "1"}),
        *(state("module", name, "absent", "loaded") for name in names),
    ]
    states = {("module", n): "loaded" for n in names} | {("module", n): "absent" for n in before}
    return recall_text(journal, states=states, installed={"nvidia-open": "1"})


def made_by_packages(count: int) -> str:
    """What scripts of packages made, of which one has to stay."""
    made = [("kernel", f"6.1-{n}") for n in range(count)]
    journal = [packages("p", added={"a": "1", "b": "1"}), *(state(*key, "absent", "present") for key in made)]
    needs = [("needs", "c", "b"), ("gives", "b", "b"), *(("mention", "b", name) for _, name in made)]
    present = dict.fromkeys(made, "present")
    return recall_text(journal, states=present, installed={"a": "1", "b": "1", "c": "1"}, more=needs)


def one_setting_by_two(count: int) -> str:
    """Somebody else sets it before each time that gpunode does."""
    journal = [state("mask", "a.service", f"p{n}", f"g{n}") for n in range(count)]
    return recall_text(journal, states={("mask", "a.service"): f"g{count - 1}"})


def one_file(count: int) -> str:
    """Written as a whole, again and again."""
    ids = [f"f{n}" for n in range(count // 2)]
    journal = [one for n, id in enumerate(ids) for one in wrote(id, ("/etc/a", sha(n), sha(n + 1)))]
    return recall_text(journal, files={"/etc/a": sha(len(ids))}, kept=[(id, "/etc/a") for id in ids])


def one_file_by_two(count: int) -> str:
    """Somebody else writes it before each time that gpunode does; the node has all versions."""
    ids = [f"20261122T010000Z-files-{n:06d}" for n in range(count // 2)]
    pairs = [(b"person %d\n" % n, b"person %d\ngpunode %d\n" % (n, n)) for n in range(len(ids))]
    journal = [
        one
        for id, (before, after) in zip(ids, pairs, strict=True)
        for one in wrote(id, ("/etc/a", digest(before), digest(after)))
    ]
    more = [
        ("version", f"{id}/1.{kind}", "/etc/a", coded(data))
        for id, pair in zip(ids, pairs, strict=True)
        for kind, data in zip(("old", "new"), pair, strict=True)
    ]
    return recall_text(
        journal, files={"/etc/a": digest(pairs[-1][1])}, kept=[(id, "/etc/a") for id in ids],
        more=[*more, ("content", "/etc/a", coded(pairs[-1][1]))],
    )  # fmt: skip


def one_edited_file(count: int) -> str:
    """Each edit exchanges its own line, has its record of how it goes back, and somebody has written a line since."""
    ids = [f"20261122T010000Z-files-{n:06d}" for n in range(count // 2)]
    texts = [b"a\nb\nc\ngpunode %d\nd\ne\nf\n" % n if n else b"a\nb\nc\nd\ne\nf\n" for n in range(len(ids) + 1)]
    journal, more = [], []
    for n, id in enumerate(ids):
        journal += wrote(id, ("/etc/docker/daemon.json", digest(texts[n]), digest(texts[n + 1])))
        more.append(undo_row(id, "/etc/docker/daemon.json", texts[n], texts[n + 1]))
        more.append(("follow", id, coded(b"unit docker.service\nverb restart\n"), "", ""))
    now = texts[-1] + b"mine\n"
    more.append(("content", "/etc/docker/daemon.json", coded(now)))
    return recall_text(
        journal, files={"/etc/docker/daemon.json": digest(now)}, more=more,
        kept=[(id, "/etc/docker/daemon.json") for id in ids],
    )  # fmt: skip


def files(count: int) -> str:
    """As many files, each of them changed since."""
    journal = [one for n in range(count // 2) for one in wrote(f"f{n}", (f"/etc/{n}", sha(n), sha(n + 1)))]
    now = {f"/etc/{n}": sha(n + 2) for n in range(count // 2)}
    return recall_text(journal, files=now, kept=[(f"f{n}", path) for n, path in enumerate(now)])


def repositories(count: int) -> str:
    """In one transaction, all of them new."""
    paths = [f"/etc/apt/sources.list.d/{n}.list" for n in range(count)]
    return recall_text(wrote("f", *((p, ABSENT, sha(1)) for p in paths)), files=dict.fromkeys(paths, sha(1)))


def services(count: int) -> str:
    """A configuration for each, with what followed its edit."""
    numbers = range(count // 2)
    journal = [one for n in numbers for one in wrote(f"f{n}", (f"/etc/{n}", ABSENT, sha(n)), part="runtime")]
    more: list[Sequence[str]] = [("follow", f"f{n}", coded(b"unit u%d.service\n" % n), "", "") for n in numbers]
    more += [undo_row(f"f{n}", f"/etc/{n}", None, b"%d" % n) for n in numbers]
    return recall_text(journal, files={f"/etc/{n}": sha(n) for n in numbers}, more=more)


def brought(count: int) -> str:
    """Files that packages brought, and that somebody has changed."""
    journal = [
        packages("p", added={"a": "1"}),
        *(line("files", id=f"f{n}", by="packages", files=[_file(n)]) for n in range(count)),
    ]
    now = {f"/etc/{n}": sha(n + 1) for n in range(count)}
    return recall_text(journal, files=now, installed={"a": "1"}, more=[("unchanged", "a", path) for path in now])


def _file(n: int) -> Mapping[str, str]:
    return {"path": f"/etc/{n}", "before": ABSENT, "after": sha(n)}


def generated_files(count: int) -> str:
    """Specifications that a service of the packages writes."""
    journal = [state("cdi", f"/etc/cdi/{n}", "absent", "present") for n in range(count)]
    return recall_text(journal, states={("cdi", f"/etc/cdi/{n}"): "present" for n in range(count)})


def kernels(count: int) -> str:
    names = {f"kernel-{n}": "1" for n in range(count)}
    return recall_text([packages("p", added=names)], manager="dnf", installed=names)


def chain(count: int) -> str:
    """Packages that need each other, the last of them by somebody's own."""
    names = {f"a{n}": "1" for n in range(count)}
    needs = [("needs", f"a{n + 1}", f"a{n}") for n in range(count - 1)]
    more = [*needs, ("needs", "theirs", f"a{count - 1}"), *(("gives", name, name) for name in names)]
    return recall_text([packages("p", added=names)], installed=names | {"theirs": "1"}, more=more)


def one_word(count: int) -> str:
    """Packages that all give one word, and as many of somebody's own that need it."""
    names = {f"a{n}": "1" for n in range(count // 2)}
    theirs = {f"b{n}": "1" for n in range(count // 2)}
    more = [*(("gives", name, "word") for name in names), *(("needs", name, "word") for name in theirs)]
    return recall_text([packages("p", added=names)], installed=names | theirs, more=more)


def one_package(count: int) -> str:
    """In other versions again and again, held and given free, marked in turns."""
    journal = []
    for n in range(count):
        how = {"held": ["a"], "marks": ["manual a"]} if n % 2 else {"unheld": ["a"], "unmarked": ["manual a"]}
        journal.append(packages(f"p{n}", changed={"a": (str(n), str(n + 1))}, **how))
    return recall_text(journal, installed={"a": str(count)}, available={"a": ["0"]}, more=[("mark", "manual a")])


def changed_packages(count: int) -> str:
    """Each of them is put back by a run of its own, and somebody has changed each of them since."""
    names = [f"a{n}" for n in range(count)]
    journal = [packages(f"p{n}", changed={name: ("1", "2")}) for n, name in enumerate(names)]
    return recall_text(journal, installed=dict.fromkeys(names, "3"))


def rollbacks(count: int) -> str:
    """A run, and the rollback that goes back to the one before."""
    journal = []
    for n in range(count // 4):
        run = {"run": f"r{n}", "controller": "c"}
        journal += [state("sysctl", "net.a", "0", "1", **run), line("run", id=f"e{n}", **run)]
        back = {"run": f"k{n}", "part": "rollback", "controller": "c"}
        if n % 2:
            journal += [state("sysctl", "net.a", "1", "0", **back)]
            journal += [line("rollback", id=f"b{n}", to=f"r{n - 1}", run=f"k{n}", part="rollback", controller="c")]
        else:
            journal += [state("sysctl", f"net.b{n}", "0", "1", run=f"s{n}"), line("run", id=f"d{n}", run=f"s{n}")]
    return recall_text(journal, states={("sysctl", "net.a"): "1"})


def interrupted_runs(count: int) -> str:
    """Runs of a controller that never came to an end."""
    runs = [{"run": f"r{n}", "part": f"p{n}", "controller": "c"} for n in range(count)]
    return recall_text([state("sysctl", f"net.a{n}", "0", "1", **run) for n, run in enumerate(runs)])


def unfinished(count: int) -> str:
    """Transactions without an outcome, each of them of the same files."""
    journal = [wrote(f"f{n}", ("/etc/a", sha(n), sha(n + 1)), ("/etc/b", sha(n), sha(n + 1)))[0] for n in range(count)]
    return recall_text(journal, files={"/etc/a": sha(count), "/etc/b": sha(0)})


def undone(count: int) -> str:
    """Transactions that were taken back at once."""
    journal = []
    for n in range(count // 2):
        begun = wrote(f"f{n}", (f"/etc/{n}", ABSENT, sha(n)))[0]
        journal += [begun, line("files", id=f"f{n}", phase="undone")]
    return recall_text(journal)


def uninstalls(count: int) -> str:
    journal = []
    for n in range(count // 2):
        journal += [state("sysctl", "net.a", "0", "1"), line("uninstall", id=f"u{n}", part="uninstall")]
    return recall_text([*journal, state("sysctl", "net.a", "0", "1")], states={("sysctl", "net.a"): "1"})


def unknown_operations(count: int) -> str:
    return recall_text([line(f"op{n}", id=f"o{n}", run="r") for n in range(count)])


def copies(count: int) -> str:
    """Folders of transactions that no record names."""
    more = [("backup", f"20261122T000000Z-files-{n:06d}") for n in range(1, count)]
    return recall_text([line("state", id="s", kind="sysctl", name="net.a", to="1", at=AT, **{"from": "0"})], more=more)


Shape = Callable[[int], str]
SHAPES: Mapping[str, Shape] = {
    shape.__name__: shape
    for shape in (
        settings, modules, made_by_packages, one_setting_by_two, one_file, one_file_by_two, one_edited_file, files,
        repositories, services, brought, generated_files, kernels, chain, one_word, one_package, changed_packages,
        rollbacks, interrupted_runs, unfinished, undone, uninstalls, unknown_operations, copies,
    )
}  # fmt: skip


def work(text: str) -> UndoPlan:
    """All that a controller makes of the text: the runs, the plan of an uninstall, its requests, what differs."""
    journal = parse_snapshot(text)
    present_request(journal.records)
    for one in standing(journal.records):
        summary(journal.records[one.first : one.last + 1])
    scope = scope_of(journal, verb="uninstall")
    back = plan_undo(journal, scope)
    compared(back)
    undo_requests(back, check=True)
    differences(journal, scope, back.noted)
    return back
