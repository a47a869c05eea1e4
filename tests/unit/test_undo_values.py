"""Undo by value: a setting that still says what gpunode wrote is as before, what a person has set stays and is named.

The oracle reads the files with json and tomllib, before and after, and knows nothing of hunks and lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from edit_cases import applied
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from undo_model import MOVED, Fake, Killed, Real, take_back

from gpunode.core.edits import RuntimeRequest, configure_runtime, runtime_state, unconfigure_runtime
from gpunode.core.edits.commit import FileChange, commit_request
from gpunode.core.edits.target import Activation
from gpunode.core.edits.undo import record, revert, undo_data
from gpunode.core.edits.values import values
from gpunode.core.undo.plan import plan_undo
from gpunode.core.undo.scope import scope_of

DOCKER, PODMAN = "/etc/docker/daemon.json", "/etc/containers/containers.conf"
CONTAINERD, CRIO = "/etc/containerd/config.toml", "/etc/crio/crio.conf"
CRI = '[plugins."io.containerd.grpc.v1.cri".containerd'
UNITS = {DOCKER: "docker.service", CONTAINERD: "containerd.service", CRIO: "crio.service"}
WHO = {"run": "r1", "part": "runtime"}
OWN = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
Leaves = dict[tuple[str, ...], Any]


def leaves(value: Any, former: Any = None, path: tuple[str, ...] = ()) -> Leaves:
    """Each setting; an entry of `runtimes` that is not in the former value is one."""
    if not isinstance(value, dict) or (path[-2:-1] == ("runtimes",) and former is None):
        return {path: value}
    was = former if isinstance(former, dict) else {}
    return {
        key: one for name, below in value.items() for key, one in leaves(below, was.get(name), (*path, name)).items()
    }


def read(path: str, data: bytes | None) -> Any:
    text = (data or b"").decode()
    return (json.loads(text) if text.strip() else {}) if path == DOCKER else tomllib.loads(text)


# ---------------------------------------------------------------- what was there


@st.composite
def daemon_json(draw: st.DrawFn) -> bytes:
    former: dict[str, Any] = {
        "log-driver": "json-file",
        "log-opts": {"max-size": "10m"},
        "runtimes": draw(
            st.sampled_from(
                [
                    {"nvidia": {"path": OWN, "runtimeArgs": ["--x"]}},
                    {"runsc": {"path": "/usr/bin/runsc"}},
                    {"nvidia": {"path": OWN}, "crun": {"path": "/usr/bin/crun"}},
                ]
            )
        ),
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "features": {"buildkit": True},
        "dns": ["1.1.1.1"],
    }
    keys = draw(st.permutations(sorted(former)))
    found = {key: former[key] for key in keys[: draw(st.integers(0, len(keys)))]}
    names = [*found.get("runtimes", {}), "runc"]
    if draw(st.booleans()):
        found["default-runtime"] = draw(st.sampled_from(names))
    indent = draw(st.sampled_from([None, 2, 4, "\t"]))
    separators = draw(st.sampled_from([None, (",", ":")])) if indent is None else None
    return (json.dumps(found, indent=indent, separators=separators) + draw(st.sampled_from(["\n", ""]))).encode()


@st.composite
def toml_file(draw: st.DrawFn, path: str) -> bytes:
    if path == PODMAN:
        parts = ['runtime = "crun"\n', 'events_logger = "file"\n']
        kept = [part for part in parts if draw(st.booleans())]
        tables = ['[engine.runtimes]\ncrun = ["/usr/bin/crun"]\n', f'[engine.runtimes]\nnvidia = ["{OWN}"]\n', ""]
        text = "[containers]\npids_limit = 0\n\n[engine]\n" + "".join(kept) + "\n" + draw(st.sampled_from(tables))
    elif path == CRIO:
        default = draw(st.sampled_from(['default_runtime = "runc"\n', 'default_runtime = "crun"\n', ""]))
        table = '[crio.runtime.runtimes.runc]\nruntime_path = "/usr/bin/runc"\nruntime_type = "oci"\n'
        crun = '[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\nruntime_type = "oci"\n'
        text = f"[crio.runtime]\nlog_level = 'info'\n{default}\n{crun}\n{table}"
    else:
        nvidia = f'{CRI}.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'
        nvidia += f'{CRI}.runtimes.nvidia.options]\nBinaryName = "{OWN}"\n'
        runc = f'{CRI}.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
        runc += f"{CRI}.runtimes.runc.options]\nSystemdCgroup = true\n"
        default = draw(st.sampled_from([f'{CRI}]\ndefault_runtime_name = "runc"\n', ""]))
        text = "version = 2\n\n" + default + "\n".join(part for part in (nvidia, runc) if draw(st.booleans()))
        text += '\n[metrics]\naddress = "127.0.0.1:1338"\n' if draw(st.booleans()) else ""
    return text.rstrip("\n").encode() if draw(st.booleans()) else text.encode()


# ---------------------------------------------------------------- what a person does to it


def changed_json(draw: st.DrawFn, data: bytes) -> bytes:
    text = data.decode()
    how = draw(st.sampled_from(["first", "last", "reformat", "one line", "set", "remove", "runtime", "space"]))
    now = json.loads(text)
    if how == "space":
        at = draw(st.sampled_from([found.end() for found in re.finditer(r"[{,]", text)]))
        inside = text.count('"', 0, at) % 2
        return (text if inside else text[:at] + "\n\n" + text[at:]).encode()
    if how == "first":
        return text.replace("{", '{"debug": false' + (", " if now else ""), 1).encode()
    if how == "last":
        body, end, rest = text.rpartition("}")
        return (body.rstrip() + (",\n" if now else "") + '  "experimental": true\n' + end + rest).encode()
    if how == "runtime":
        now.setdefault("runtimes", {})["mine"] = {"path": "/usr/bin/mine"}
    elif how in ("set", "remove") and now:
        path = draw(st.sampled_from(sorted(path for path in leaves(now) if "nvidia" not in path) or [("x",)]))
        at = now
        for key in path[:-1]:
            at = at[key]
        if how == "remove":
            at.pop(path[-1], None)
        else:
            at[path[-1]] = draw(st.sampled_from(["mine", ["mine"], True]))
    return json.dumps(now, indent=None if how == "one line" else draw(st.sampled_from([2, 4]))).encode()


def changed_toml(draw: st.DrawFn, data: bytes) -> bytes:
    lines = data.decode().splitlines(keepends=True)
    lines[-1] = lines[-1].rstrip("\n") + "\n"
    how = draw(st.sampled_from(["blank", "comment", "table", "key", "set", "remove", "no end"]))
    heads = [n for n, line in enumerate(lines) if line.lstrip().startswith("[")]
    pairs = [n for n, line in enumerate(lines) if re.match(r'\s*(runtime|default\w*|log_level) = "', line)]
    if how in ("blank", "comment"):
        new = "\n" if how == "blank" else "# of a person\n"
        lines.insert(draw(st.integers(0, len(lines))), new)
    elif how == "table":
        lines.insert(draw(st.sampled_from([*heads, len(lines)])), "[mine]\nx = 1\n\n")
    elif how == "key" and heads:
        below = [n for n, line in enumerate(lines) if n >= heads[0] and (n in heads or " = " in line)]
        lines.insert(draw(st.sampled_from(below)) + 1, "  mine = 'y'\n")
    elif pairs and how in ("set", "remove"):
        at = draw(st.sampled_from(pairs))
        lines[at] = re.sub(r'".*"', '"mine"', lines[at]) if how == "set" else ""
    elif how == "no end":
        lines[-1] = lines[-1].rstrip("\n")
    try:
        tomllib.loads("".join(lines))
    except tomllib.TOMLDecodeError:  # a table that is there already
        return data
    return "".join(lines).encode()


@dataclass(frozen=True)
class Story:
    """A file before gpunode, as gpunode left it, and as a person left it then; how its path leads there, what dies.

    `link`: one before gpunode (`was`), one that a person made since (`since`), or that has become a file (`no more`).
    """

    path: str
    before: bytes | None
    after: bytes
    now: bytes
    link: str
    mode: int | None
    edit_dies: int | None
    undo_dies: int | None


@st.composite
def stories(draw: st.DrawFn) -> Story:
    path = draw(st.sampled_from([DOCKER, DOCKER, PODMAN, CRIO, CONTAINERD]))
    before = draw(st.none() | daemon_json() if path == DOCKER else toml_file(path))
    edit = configure_runtime({} if before is None else {path: before}, asked(draw, path))
    now = after = edit.changes.get(path) or before or b"{}"
    for _ in range(draw(st.integers(0, 3))):
        now = (changed_json if path == DOCKER else changed_toml)(draw, now)
    return Story(
        path=path,
        before=before,
        after=after,
        now=now,
        link=draw(st.sampled_from(["", "", "since", *(["was", "no more"] if before is not None else [])])),
        mode=draw(st.none() | st.sampled_from([0o600, 0o640])),
        edit_dies=draw(st.none() | st.integers(0, 1)),
        undo_dies=draw(st.none() | st.integers(0, 1)),
    )


def asked(draw: st.DrawFn, path: str) -> RuntimeRequest:
    kinds: Any = {DOCKER: "docker", PODMAN: "podman", CRIO: "crio", CONTAINERD: "containerd"}
    versions = {DOCKER: "28.5.2", PODMAN: "5.4.2", CRIO: "1.32.1", CONTAINERD: "1.7.24"}
    return RuntimeRequest(
        runtime=kinds[path],
        version=versions[path],
        config=path,
        in_place=path != DOCKER,
        default_runtime=draw(st.sampled_from(["nvidia", "nvidia", "keep"])),
        cdi=draw(st.sampled_from([None, True, False])) if path == DOCKER else None,
    )


def judge(node: Fake, root: str, story: Story) -> None:
    """Each setting is as before, or a person's and named; links and modes stay, and a second undo does nothing."""
    path, before = f"{root}{story.path}", story.before
    if before is not None:
        node.person_writes(path, before)
        if story.link in ("was", "no more"):
            node.person_moves(path)
    unit = "" if root else UNITS.get(story.path, "")
    undo = {path: record(before, story.after)}
    for killed in (story.edit_dies if story.after != before else None, None):
        with contextlib.suppress(Killed):
            node.commit({path: story.after}, undo=undo, unit=unit, killed=killed, who=WHO)
    if story.link == "no more":
        node.person_replaces_link(path, story.now)
    else:
        node.person_writes(path, story.now)
        if story.link == "since":
            node.person_moves(path)
    if root and story.mode:
        Path(path).chmod(story.mode)
        os.chown(path, 1, 1)
    node.dies, died = story.undo_dies, False
    try:
        done = take_back(node, "uninstall")
    except Killed:
        died, done = True, take_back(node, "uninstall")
    node.dies = None
    left = node.read(path)
    assert take_back(node, "uninstall").notes == ()
    assert node.read(path) == left
    if story.now == story.after:
        assert left == before
        assert [note for note in done.notes if "it was a link to" not in note] == []
    if root and story.mode and left is not None:
        found = Path(path).stat()
        assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (story.mode, 1, 1)
    by_value(story, left, done.notes, ended=not died)


def by_value(story: Story, left: bytes | None, notes: Sequence[str], *, ended: bool) -> None:
    """Settings; what a person has set is named, by its file where an undo that named it died."""
    former = read(story.path, story.before)
    was, wrote, have, found = (
        leaves(read(story.path, data), former) for data in (story.before, story.after, story.now, left)
    )
    gone = object()
    for key in {*was, *wrote, *have, *found}:
        old, new, there, undone = (leaf.get(key, gone) for leaf in (was, wrote, have, found))
        if isinstance(there, list) and isinstance(new, list) and new != old and there != new:
            continue  # a list may be both
        if {} in (old, new, there, undone):
            continue  # a table with nothing in it says nothing
        if new == old or there == old:
            assert undone == there, key
        elif there == new:
            assert undone == old, key
        elif there is not gone or any(other[: len(key)] == key for other in have):
            # what starts a program that goes with gpunode goes with it
            with_program = isinstance(there, dict) and "/usr/bin/nvidia-container-runtime" in str(there)
            assert undone in (there, old if with_program else there) or isinstance(undone, dict), (key, notes)
            places = (".".join(key),) if ended else (story.path, MOVED)
            named = [note for note in notes if any(place in note for place in places)]
            assert named, (key, notes)


@given(stories())
def test_a_setting_that_says_what_gpunode_wrote_is_as_before_and_all_others_stay(story: Story) -> None:
    judge(Fake(), "", story)


@pytest.mark.extended
def test_settings_are_as_before_in_ten_thousand_undos() -> None:
    count = int(os.environ.get("GPUNODE_UNDO_VALUES", "10000"))
    how = settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    how(given(stories())(lambda story: judge(Fake(), "", story)))()


MANY, PARTS = int(os.environ.get("GPUNODE_UNDO_SCRIPTS", "300")), 6  # a story starts some thousand processes
LONG = [pytest.mark.extended, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("count", "part"),
    [
        pytest.param(2, 0, marks=pytest.mark.slow),
        *(pytest.param(MANY // PARTS, part, marks=LONG) for part in range(1, PARTS + 1)),
    ],
)
def test_settings_are_as_before_with_the_scripts(count: int, part: int, tmp_path: Path) -> None:
    how = settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    story = given(stories())(lambda story: judge(Real(tmp_path / "node"), f"{tmp_path}/node", story))
    how(seed(part)(story))()  # each part has stories of its own


RUNC = f'version = 2\n\n{CRI}]\ndefault_runtime_name = "runc"\n'
TABLE = f'{CRI}.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'
FORMERLY = f'{RUNC}{TABLE}{CRI}.runtimes.nvidia.options]\nBinaryName = "{OWN}"\n'
NVIDIA = "[crio.runtime.runtimes.nvidia]\n"
PLAIN = '[crio.runtime]\ndefault_runtime = "runc"\n[crio.runtime.runtimes.runc]\nruntime_path = "/usr/bin/runc"\n'


@pytest.mark.parametrize(
    ("path", "before", "wrote", "mine", "link", "dies"),
    [
        (CONTAINERD, FORMERLY, 'name = "nvidia"', 'name = "mine"', "since", None),
        (CONTAINERD, RUNC, TABLE, TABLE.replace("]\n", "]\nmine = 1\n"), "", None),
        (CRIO, PLAIN, 'default_runtime = "nvidia"', 'default_runtime = "mine"', "", 1),
        (CRIO, PLAIN, NVIDIA, f"{NVIDIA}mine = 1\n", "", 1),
        (CRIO, PLAIN, 'default_runtime = "nvidia"', 'default_runtime = "mine"', "was", None),
    ],
    ids=[
        "behind a new link",
        "a key in the entry that goes",
        "after an undo that died",
        "a key, after an undo died",
        "behind a link of before",
    ],
)
def test_what_others_set_next_to_what_goes(
    path: str, before: str, wrote: str, mine: str, link: str, dies: int | None
) -> None:
    engine: Any = "crio" if path == CRIO else "containerd"
    version = "1.32.1" if path == CRIO else "1.7.24"
    request = RuntimeRequest(runtime=engine, version=version, config=path, in_place=True, default_runtime="nvidia")
    after = configure_runtime({path: before.encode()}, request).changes[path] or b""
    now = after.replace(wrote.encode(), mine.encode())
    assert now != after
    judge(Fake(), "", Story(path, before.encode(), after, now, link, mode=None, edit_dies=None, undo_dies=dies))


PAUSE = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "pause"\n'
KATA = f'{CRI}.runtimes.kata]\nruntime_type = "io.containerd.kata.v2"\n'
DEFAULT = f'{CRI}]\ndefault_runtime_name = "nvidia"\n'
SINCE: dict[
    str, tuple[str, Callable[[str], str], set[str], str]
] = {  # what a person does after configure, which file it is, which runtimes and default are there after an undo
    "program": (CONTAINERD, lambda text: text.replace("/usr/bin/nvidia", "/opt/nvidia"), {"nvidia", "runc"}, ""),
    "runtime": (CONTAINERD, lambda text: text + KATA, {"kata", "runc"}, ""),
    "runc": (CONTAINERD, lambda text: text.replace("NoPivotRoot = false", "NoPivotRoot = true"), {"runc"}, ""),
    "default": (CONTAINERD, lambda text: text + DEFAULT, set(), ""),
    "key in the entry": (CONTAINERD, lambda text: text.replace(".nvidia]\n", ".nvidia]\nmine = 1\n"), set(), ""),
    "key at its end": (CONTAINERD, lambda text: re.sub("(BinaryName = .*nvidia.*)", r"\1\nmine = 1", text), set(), ""),
    "default runc": (CONTAINERD, lambda text: text + DEFAULT.replace("nvidia", "runc"), set(), "runc"),
    "default of Docker": (DOCKER, lambda text: text.replace("{", '{"default-runtime": "nvidia", ', 1), set(), ""),
    "default of CRI-O": (
        CRIO,
        lambda text: text.replace('default_runtime = "runc"', 'default_runtime = "nvidia"'),
        {"runc"},
        "runc",
    ),
}


def undone_since(what: str, version: str = "") -> tuple[bytes | None, bytes | None]:
    """What an uninstall, and what unconfigure leaves."""
    path, change, *_ = SINCE[what]
    before = {CONTAINERD: PAUSE, DOCKER: '{"debug": true}\n', CRIO: PLAIN}[path].encode()
    engine: Any = UNITS[path].removesuffix(".service")
    version = version or {CONTAINERD: "1.7.24", DOCKER: "28.5.2", CRIO: "1.32.1"}[path]
    request = RuntimeRequest(runtime=engine, version=version, config=path, in_place=True, default_runtime="keep")
    edit = configure_runtime({path: before}, request)
    after = edit.changes[path] or b""
    now = change(after.decode()).encode()
    assert now != after or version[0] == "2"  # containerd 2 gets no table of runc
    node = Fake(files={path: before})
    node.commit({path: after}, undo=edit.undo, unit=UNITS[path], who=WHO)
    node.person_writes(path, now)
    take_back(node, "uninstall")
    return node.read(path), {path: now, **unconfigure_runtime({path: now}, request, [edit.undo]).changes}[path]


@pytest.mark.parametrize("what", SINCE)
def test_an_engine_works_with_what_is_left_where_a_person_has_come_to_need_what_goes(what: str) -> None:
    """containerd 1.x has no runc beside a table of runtimes, and no engine starts with a default that is not there."""
    path, _, runtimes, default = SINCE[what]
    tables = {CONTAINERD: ("plugins", "io.containerd.grpc.v1.cri", "containerd"), CRIO: ("crio", "runtime"), DOCKER: ()}
    names = ("default_runtime_name", "default_runtime", "default-runtime")
    for left in undone_since(what):
        said = read(path, left)
        for key in tables[path]:
            said = said.get(key, {})
        assert {*said.get("runtimes", {})} == runtimes
        assert next((said[key] for key in names if key in said), "") == default


MIGRATED = """version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'nvidia'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
BinaryName = '/usr/bin/nvidia-container-runtime'
[metrics]
address = '127.0.0.1:1338'
"""


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("before", [RUNC, MIGRATED.partition("[metrics]")[0]])
def test_a_runtime_that_containerd_config_migrate_has_moved_goes(before: str, in_place: bool) -> None:
    """It is not where the records know it, and its program goes.  One that was there before gpunode stays."""
    request = RuntimeRequest(
        runtime="containerd",
        version="2.1.9",
        config=CONTAINERD,
        in_place=in_place,
        default_runtime="nvidia",
        cgroup_driver="systemd",
    )
    edit = configure_runtime({CONTAINERD: before.encode()}, request)
    node = Fake(files={CONTAINERD: before.encode()})
    node.commit(edit.changes, undo=edit.undo, unit=UNITS[CONTAINERD], who=WHO)
    node.person_writes(CONTAINERD, MIGRATED.encode())
    files = {path: data for path in edit.changes if (data := node.read(path)) is not None}
    there = applied(files, unconfigure_runtime(files, request, [edit.undo]))[CONTAINERD]
    take_back(node, "uninstall")
    for left in (node.read(CONTAINERD), there):
        said = tomllib.loads((left or b"").decode())
        assert said["metrics"] == {"address": "127.0.0.1:1338"}
        assert ("nvidia" in str(said)) is (before != RUNC)


# ---------------------------------------------------------------- what others have in an engine's other files

RUNTIME3 = '[plugins."io.containerd.cri.v1.runtime".containerd'
BELOW = "/etc/containerd/conf.d"
MIRRORS = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/containerd/certs.d"\n'
THEIRS = {f"{BELOW}/50-mirrors.toml": MIRRORS}
OTHERS: dict[str, tuple[str, str, dict[str, str], dict[str, str], dict[str, str | None], str]] = {
    # path and version, the files before, what a person writes since, what is there after an undo, and what is named
    "a file below the import": (CONTAINERD, "2.1.9", {CONTAINERD: RUNC}, THEIRS, THEIRS, CONTAINERD),
    "a file below the import of a root that was not there": (CONTAINERD, "2.1.9", {}, THEIRS, THEIRS, CONTAINERD),
    "a runtime in gpunode's drop-in": (
        CONTAINERD,
        "2.1.9",
        {CONTAINERD: "version = 3\n"},
        {f"{BELOW}/99-nvidia.toml": f'+{RUNTIME3}.runtimes.kata]\nruntime_type = "io.containerd.kata.v2"\n'},
        {CONTAINERD: f'version = 3\nimports = ["{BELOW}/*.toml"]\n'},
        CONTAINERD,
    ),
    "a default of their own, 2.x": (
        CONTAINERD,
        "2.1.9",
        {CONTAINERD: f'imports = ["{BELOW}/*.toml"]\n{RUNC}'},
        {f"{BELOW}/zz.toml": f'version = 2\n{DEFAULT}[metrics]\naddress = "127.0.0.1:1338"\n'},
        {f"{BELOW}/zz.toml": 'version = 2\n[metrics]\naddress = "127.0.0.1:1338"\n'},
        f"{BELOW}/zz.toml",
    ),
    "a default of their own, 1.x": (
        CONTAINERD,
        "1.7.24",
        {CONTAINERD: f'imports = ["{BELOW}/*.toml"]\n{RUNC}'},
        {f"{BELOW}/zz.toml": f"version = 2\n{DEFAULT}"},
        {CONTAINERD: f'imports = ["{BELOW}/*.toml"]\n{RUNC}', f"{BELOW}/zz.toml": "version = 2\n"},
        f"{BELOW}/zz.toml",
    ),
    "a default of their own, CRI-O": (
        CRIO,
        "1.36.3",
        {CRIO: PLAIN},
        {f"{CRIO}.d/zz.conf": '[crio.runtime]\nlog_level = "debug"\ndefault_runtime = "nvidia"\n'},
        {CRIO: PLAIN, f"{CRIO}.d/zz.conf": '[crio.runtime]\nlog_level = "debug"\n', f"{CRIO}.d/99-nvidia.toml": None},
        f"{CRIO}.d/zz.conf",
    ),
    "a default of their own, Podman": (
        PODMAN,
        "5.4.2",
        {PODMAN: '[engine]\nruntime = "crun"\n'},
        {f"{PODMAN}.d/zz.conf": '[engine]\nruntime = "nvidia"\nevents_logger = "file"\n'},
        {f"{PODMAN}.d/zz.conf": '[engine]\nevents_logger = "file"\n', f"{PODMAN}.d/99-nvidia.conf": None},
        f"{PODMAN}.d/zz.conf",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_others_have_in_an_engines_files_stays_in_force_or_goes_with_its_need_and_is_named(what: str) -> None:
    path, version, first, since, wanted, named = OTHERS[what]
    before = {place: text.encode() for place, text in first.items()}
    engine: Any = UNITS.get(path, "podman").removesuffix(".service")
    request = RuntimeRequest(runtime=engine, version=version, config=path, default_runtime="nvidia")
    edit = configure_runtime(before, request)
    node = Fake(files=dict(before), engine=f"{engine} {version}")
    node.commit(edit.changes, undo=edit.undo, unit=UNITS.get(path, ""), who=WHO)
    for place, text in since.items():
        node.person_writes(place, (node.read(place) or b"") * text.startswith("+") + text.lstrip("+").encode())
    files = dict(node.files)
    undone = unconfigure_runtime(files, request, [edit.undo])
    notes = take_back(node, "uninstall").notes
    left = {place: data for place, data in {**files, **undone.changes}.items() if data is not None}
    assert left == node.files
    assert {place: left.get(place, b"").decode() or None for place in wanted} == wanted
    assert [note for note in notes if note.startswith(f"{named}: changed since: ")], notes
    assert any(reason.what == named and reason.why.startswith("changed since: ") for reason in undone.reasons)
    found = runtime_state(left, request)
    assert {*since} & {*left} <= {*found.files} and found.default != "nvidia" and "nvidia" not in found.runtimes
    assert take_back(node, "uninstall").notes == ()


TOOLKIT = "nvidia-container-toolkit-base"
NEEDY = (
    f'version = 2\n{DEFAULT}{TABLE}{CRI}.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
)
ENTRIES: dict[str, tuple[str, str, dict[str, str], str, str, str]] = {
    # path and version, the files before, the file that a person writes since, and what its entry is called
    "an import of theirs, 1.x": (
        CONTAINERD,
        "1.7.24",
        {CONTAINERD: f'imports = ["{BELOW}/*.toml"]\n{RUNC}'},
        f"{BELOW}/zz.toml",
        NEEDY,
        "the default runtime nvidia",
    ),
    "a table of theirs, CRI-O": (
        CRIO,
        "1.36.3",
        {CRIO: PLAIN},
        f"{CRIO}.d/zz.conf",
        '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\nmonitor_env = ["A=b"]\n',
        "the runtime nvidia",
    ),
    "another name, docker": (
        DOCKER,
        "28.5.2",
        {DOCKER: "{}"},
        DOCKER,
        '{"runtimes": {"gpu": {"path": "nvidia-container-runtime"}}}',
        "the runtime gpu",
    ),
    "another of its programs, Podman": (
        PODMAN,
        "5.4.2",
        {PODMAN: ""},
        f"{PODMAN}.d/zz.conf",
        '[engine.runtimes]\ncdi = ["/usr/bin/nvidia-container-runtime.cdi"]\n',
        "the runtime cdi",
    ),
}


@pytest.mark.parametrize("what", ENTRIES)
def test_an_entry_of_a_persons_own_whose_program_goes_is_named_with_its_file(what: str) -> None:
    path, version, first, place, text, called = ENTRIES[what]
    before = {one: data.encode() for one, data in first.items()}
    engine: Any = UNITS.get(path, "podman").removesuffix(".service")
    request = RuntimeRequest(runtime=engine, version=version, config=path, default_runtime="nvidia")
    edit = configure_runtime(before, request)
    node = Fake(files=dict(before), engine=f"{engine} {version}")
    node.set_packages({TOOLKIT: "1.18.1-1"}, **WHO)
    node.commit(edit.changes, undo=edit.undo, unit=UNITS.get(path, ""), who=WHO)
    node.person_writes(place, text.encode())
    undone = unconfigure_runtime(dict(node.files), request, [edit.undo])
    notes = take_back(node, "uninstall").notes
    assert node.read(place) == text.encode()
    said = [note for note in notes if note.startswith(f"{place}: not gpunode's, and stays: {called} runs ")]
    assert len(said) == 1, notes
    assert f"{place}: " + next(one.why for one in undone.reasons if one.why.startswith("not gpunode's")) == said[0]


@pytest.mark.parametrize("what", ENTRIES)
@pytest.mark.parametrize("goes", [True, False], ids=["toolkit goes", "toolkit stays"])
def test_an_entry_in_an_engine_that_gpunode_never_edited_is_named_if_the_toolkit_goes(what: str, goes: bool) -> None:
    _path, version, first, place, text, called = ENTRIES[what]
    node = Fake(files={one: data.encode() for one, data in first.items()}, engine=f"engine {version}")
    node.others = {*first, place}
    if not goes:
        node.packages[TOOLKIT] = "1.17.9-1"
    node.set_packages({TOOLKIT: "1.18.1-1"}, **WHO)
    node.person_writes(place, text.encode())
    before, notes = dict(node.files), take_back(node, "uninstall").notes
    assert node.files == before
    start = f"{place}: not gpunode's, and stays: {called} runs "
    assert [note.startswith(start) for note in notes] == [True] * goes, notes


def test_an_entry_is_named_after_the_engine_s_edit_was_undone_before_the_toolkit_goes() -> None:
    node = Fake(files={DOCKER: b"{}"}, engine="docker 28.5.2")
    node.set_packages({TOOLKIT: "1.18.1-1"}, **WHO)
    edit = configure_runtime({DOCKER: b"{}"}, RuntimeRequest(runtime="docker", version="28.5.2"))
    node.commit(edit.changes, undo=edit.undo, unit=UNITS[DOCKER], who=WHO)
    recall = node.snapshot()
    files = plan_undo(recall, scope_of(recall, verb="uninstall", parts=("runtime",))).engines[0].files
    used = [*node.undo]
    node.commit({one.path: b"{}" for one in files}, used=used, who={"run": "u", "part": "uninstall"})
    node.person_writes(DOCKER, b'{"runtimes": {"gpu": {"path": "nvidia-container-runtime"}}}')
    recall = node.snapshot()
    notes = plan_undo(recall, scope_of(recall, verb="uninstall")).notes
    assert any(": not gpunode's, and stays: the runtime gpu runs " in note for note in notes), notes


def test_a_file_that_an_undo_rids_of_what_a_person_pasted_is_not_said_to_stay_as_it_is() -> None:
    before = {CONTAINERD: b'version = 3\n[debug]\n  level = "info"\n'}
    request = RuntimeRequest(runtime="containerd", version="2.1.9", config=CONTAINERD, default_runtime="nvidia")
    edit = configure_runtime(before, request)
    node = Fake(files=dict(before), engine="containerd 2.1.9")
    node.commit(edit.changes, undo=edit.undo, unit=UNITS[CONTAINERD], who=WHO)
    pasted = (node.read(f"{BELOW}/99-nvidia.toml") or b"").replace(b"version = 3\n", b"")
    node.person_writes(CONTAINERD, before[CONTAINERD] + pasted)
    notes = take_back(node, "uninstall").notes
    assert dict(node.files) == before
    assert [note.partition("; ")[0] for note in notes] == [f"{CONTAINERD}: changed since, not by gpunode"]
    assert "their lines stay" in notes[0]


def test_a_runtime_that_was_there_before_gpunode_is_not_named_again() -> None:
    before = {DOCKER: b'{"runtimes": {"gpu": {"path": "/usr/bin/nvidia-container-runtime"}}}'}
    request = RuntimeRequest(runtime="docker", version="28.5.2", default_runtime="nvidia")
    edit = configure_runtime(before, request)
    undone = unconfigure_runtime(applied(before, edit), request, [edit.undo])
    assert not any("stays" in one.why for one in undone.reasons)


@pytest.mark.slow
def test_the_scripts_read_all_that_an_engine_reads(tmp_path: Path) -> None:
    """Also what gpunode has not written: a file below its import stays in force, one that needs nvidia changes."""
    node, binary = Real(tmp_path / "node"), tmp_path / "containerd"
    binary.write_text("#!/bin/sh\necho containerd github.com/containerd/containerd 2.1.9~ds1 1\n")
    binary.chmod(0o755)
    root, below = f"{node.root}/etc/containerd/config.toml", f"{node.root}/etc/containerd/conf.d"
    node.person_writes(root, RUNC.encode())
    request = RuntimeRequest(runtime="containerd", version="2.1.9", config=root, default_runtime="nvidia")
    edit = configure_runtime({root: RUNC.encode()}, request)
    sent = commit_request(
        [FileChange(path=path, data=data) for path, data in edit.changes.items()],
        after=Activation(unit="containerd.service", verb="", config=root, validate=(str(binary), "@FILE@")),
    )
    node.run("commit.sh", sent | {"undo": json.dumps({"label": "x", **undo_data(edit.undo)}).encode()}, **WHO)
    node.person_writes(f"{below}/50-mirrors.toml", MIRRORS.encode())
    node.person_writes(f"{below}/zz.toml", f"version = 2\n{DEFAULT}".encode())
    notes = take_back(node, "uninstall").notes
    assert tomllib.loads((node.read(root) or b"").decode())["imports"] == [f"{below}/*.toml"]
    assert node.read(f"{below}/zz.toml") == b"version = 2\n"
    assert node.read(f"{below}/99-nvidia.toml") is None
    assert {note.partition(": ")[0] for note in notes} == {root, f"{below}/zz.toml"}, notes
    assert take_back(node, "uninstall").notes == ()


@pytest.mark.parametrize("broken", [b'{"runtimes": {', b"\xff\xfe", b"[]\n", b"{} {}\n", b""])
def test_a_daemon_json_that_a_person_has_broken_stays_and_is_named(broken: bytes) -> None:
    before = json.dumps({"log-driver": "json-file"}, indent=2).encode()
    edit = configure_runtime({DOCKER: before}, RuntimeRequest(runtime="docker", version="28.5.2"))
    node = Fake(files={DOCKER: before})
    node.commit(edit.changes, undo=edit.undo, unit=UNITS[DOCKER], who=WHO)
    node.person_writes(DOCKER, broken)
    done = take_back(node, "uninstall")
    assert node.read(DOCKER) == broken and [DOCKER in note for note in done.notes] == [True], done.notes
    assert take_back(node, "uninstall").notes == ()


def test_a_list_of_podman_that_a_person_made_longer_is_named_once() -> None:
    before = b'[engine]\nruntime = "runc"\n'
    request = RuntimeRequest(runtime="podman", version="5.4.2", config=PODMAN, in_place=True)
    edit = configure_runtime({PODMAN: before}, request)
    node = Fake(files={PODMAN: before})
    node.commit(edit.changes, undo=edit.undo, who=WHO)
    mine = b'"/usr/bin/nvidia-container-runtime", "/opt/bin/nvidia-container-runtime"'
    node.person_writes(PODMAN, (node.read(PODMAN) or b"").replace(b'"/usr/bin/nvidia-container-runtime"', mine))
    assert take_back(node, "uninstall").notes == (f"{PODMAN}: changed since, not by gpunode; their lines stay",)
    assert b'nvidia = ["/opt/bin/nvidia-container-runtime"]\n' in (node.read(PODMAN) or b"")


# ---------------------------------------------------------------- the readers' cases


FORMER = {
    "default-runtime": "crun",
    "runtimes": {"nvidia": {"path": OWN, "runtimeArgs": ["--x"]}, "crun": {"path": "c"}},
}


@pytest.mark.parametrize("indent", [None, 2, 4])
@pytest.mark.parametrize("foreign", ['"debug": false, ', "\n\n", '\n  "dns": ["1.1.1.1"],\n'])
def test_a_foreign_key_or_blank_line_loses_no_former_runtime_of_a_daemon_json(indent: int | None, foreign: str) -> None:
    before = json.dumps(FORMER, indent=indent).encode()
    edit = configure_runtime({DOCKER: before}, RuntimeRequest(runtime="docker", version="28.5.2"))
    now = (edit.changes[DOCKER] or b"").replace(b"{", b"{" + foreign.encode(), 1)
    asked = RuntimeRequest(runtime="docker", version="28.5.2")
    left = json.loads(unconfigure_runtime({DOCKER: now}, asked, [edit.undo]).changes[DOCKER] or b"")
    assert {key: left[key] for key in FORMER} == FORMER


def test_a_blank_line_before_a_header_loses_no_former_runtime_of_podman() -> None:
    before = b'[engine]\nruntime = "crun"\n[engine.runtimes]\ncrun = ["/usr/bin/crun"]\n'
    asked = RuntimeRequest(runtime="podman", in_place=True)
    edit = configure_runtime({PODMAN: before}, asked)
    now = (edit.changes[PODMAN] or b"").replace(b"[engine.runtimes]", b"\n[engine.runtimes]")
    assert unconfigure_runtime({PODMAN: now}, asked, [edit.undo]).changes == {
        PODMAN: before.replace(b"[engine.runtimes]", b"\n[engine.runtimes]")
    }


def test_a_block_at_the_end_of_a_file_without_a_line_end_is_no_longer_there_after_an_undo() -> None:
    before = b'[crio.runtime]\ndefault_runtime = "runc"\n[crio.runtime.runtimes.runc]\nruntime_type = "oci"'
    asked = RuntimeRequest(runtime="crio", version="1.32.1", in_place=True, default_runtime="keep")
    edit = configure_runtime({CRIO: before}, asked)
    now = (edit.changes[CRIO] or b"").replace(b"\n\n", b"\n") + b"\n# mine\n"
    left = unconfigure_runtime({CRIO: now}, asked, [edit.undo]).changes[CRIO] or b""
    assert (tomllib.loads(left.decode()), b"# mine" in left) == (tomllib.loads(before.decode()), True)


def test_a_value_that_a_person_has_set_since_stays_and_is_named_with_the_former_one() -> None:
    asked = RuntimeRequest(runtime="docker", version="28.5.2")
    edit = configure_runtime({DOCKER: json.dumps(FORMER, indent=2).encode()}, asked)
    now = (edit.changes[DOCKER] or b"").replace(b'"default-runtime": "nvidia"', b'"default-runtime": "runc"')
    undone = unconfigure_runtime({DOCKER: now}, asked, [edit.undo])
    assert json.loads(undone.changes[DOCKER] or b"") == {**FORMER, "default-runtime": "runc"}
    assert 'changed since: default-runtime is "runc", and was "crun" before gpunode' in [r.why for r in undone.reasons]


@pytest.mark.parametrize(
    ("path", "more"),
    [("/etc/x.json", b'"deep": ' + b"[" * 400 + b"]" * 400 + b","), ("/etc/x.yaml", b"1: {true: x}\n")],
)
def test_a_file_that_is_nested_deeply_or_has_other_keys_is_undone_by_its_lines(path: str, more: bytes) -> None:
    text = b'{\n%b\n"b": 1,\n"c": 2,\n"d": 3\n}\n' if path.endswith("json") else b"%ba: 1\nb: 1\nc: 2\nd: 3\n"
    before = text % more
    line = next(line for line in before.splitlines(keepends=True) if b"c" in line)
    after = before.replace(line, line.replace(b"c", b"new") + line)
    now = after.replace(b"3", b"4")
    assert values(path, now) is None
    assert revert(now, record(before, after), path) == (before.replace(b"3", b"4"), ())


def test_what_a_person_has_set_in_a_kubelets_conf_stays_and_is_named() -> None:
    path = "/etc/kubernetes/kubelet.conf.d/99-reserved.conf"
    before, after, now = (
        f"# reserved\napiVersion: kubelet.config.k8s.io/v1beta1\nsystemReserved:\n  memory: {value}\n".encode()
        for value in ("200Mi", "1Gi", "2Gi")
    )
    left, [lost] = revert(now, record(before, after), path)
    assert left == now and lost.theirs
    assert lost.text == 'systemReserved.memory is "2Gi", and was "200Mi" before gpunode'


def test_a_setting_that_was_null_is_null_again() -> None:
    path = "/etc/rancher/k3s/config.yaml"
    before, after = (f"default-runtime:{value}\nselinux: false\n".encode() for value in ("", " nvidia"))
    left, lost = revert(after.replace(b"selinux", b"# of a person\nselinux"), record(before, after), path)
    assert values(path, left or b"") == {"default-runtime": None, "selinux": False}
    assert not lost
