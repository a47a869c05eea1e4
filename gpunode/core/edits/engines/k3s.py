"""k3s and RKE2: their own detection and `default-runtime`; a drop-in where those do not reach.

- The runtime `nvidia`: k3s adds it when its agent starts, where it finds nvidia-container-runtime; nothing is written.
- The default: the line `default-runtime: nvidia` in config.yaml.  There is no line for runc: k3s does not start with a
  default that it has not found, so going back removes the line.
- Another name, path or CDI setting: a drop-in, where the rendered config.toml imports them (2026 and later).
A user's template (config.toml.tmpl) is Go's and no TOML: it is read for the runtimes that it names, and never edited.
Sources: see the files of a node, below.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gpunode.core.content import check_size, decode
from gpunode.core.edits.engines import containerd
from gpunode.core.edits.target import Activation, Refusal, RuntimeRequest, RuntimeState
from gpunode.core.edits.text import toml, yamltext
from gpunode.core.model import Edit, NodeFacts, Reason, Runtime
from gpunode.core.numbers import whole

# ---------------------------------------------------------------- the files of a node

# Both make containerd's config.toml again at every start of their agent: from a template of the user's, else from their
# own.  Their own template adds the runtimes that they find (nvidia-container-runtime as `nvidia`), and takes the
# default one from the setting `default-runtime`.
# Sources: k3s-io/k3s pkg/agent/containerd/{config,config_linux,runtimes}.go, pkg/configfilearg/parser.go, pull requests
# 8470, 8936, 11088, 13680; docs.k3s.io/advanced; rancher/rke2-docs docs/advanced.md.

SETTING = "default-runtime"
OPERATOR = "/usr/local/nvidia/"  # where the GPU Operator's toolkit container installs
CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_FOLDERS = ("/usr/local/nvidia/toolkit", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/sbin", "/bin")
_CONTAINERD_2 = {31: 6, 32: 2}  # Kubernetes' minor release → the first patch with containerd 2.x
_GO_COMMENT = re.compile(r"-?\s*/\*")
_LINE_COMMENT = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
_BASE = re.compile(r"\{\{-?\s*template\s+[\"`]base[\"`]\s+\.\s*-?\}\}")


def has_containerd_2(version: str) -> bool:
    """Whether the version is containerd's ("1.7.23-k3s2") or a Kubernetes' ("v1.31.6+k3s1") that brings 2.x.

    >>> has_containerd_2("v1.31.5+k3s1"), has_containerd_2("v1.31.6+rke2r1"), has_containerd_2("2.0.2-k3s2")
    (False, True, True)
    """
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if not found:
        return True
    major, minor, patch = whole(found[1]), whole(found[2]), whole(found[3] or "")
    if major != 1 or minor < 20:
        return major > 1
    return patch >= _CONTAINERD_2[minor] if minor in _CONTAINERD_2 else minor > max(_CONTAINERD_2)


def _uncommented(text: str) -> str:
    """A template without {{/* comments */}} and lines that are comments."""
    kept, at = [], 0
    while (start := text.find("{{", at)) >= 0:
        comment = _GO_COMMENT.match(text, start + 2)
        kept.append(text[at : start if comment else start + 2])
        end = text.find("}}", text.find("*/", comment.end())) if comment else start
        at = end + 2 if end >= 0 else len(text)
    return _LINE_COMMENT.sub("", "".join([*kept, text[at:]]))


@dataclass(frozen=True)
class K3sSetting:
    """A value of the command line or a config file; `path` "" stands for the command line."""

    value: str
    path: str = ""


@dataclass(frozen=True)
class Node:
    """A node's files, read as k3s reads them.  `kind` is k3s or rke2."""

    kind: str
    files: Mapping[str, bytes]
    request: RuntimeRequest

    # ------------------------------------------------------------ settings

    @property
    def config(self) -> str:
        """config.yaml, also where the request names a file of containerd's: a template, or the rendered one."""
        named = "" if self.request.config.endswith((".tmpl", ".toml")) else self.request.config
        return named or f"/etc/rancher/{self.kind}/config.yaml"

    @cached_property
    def documents(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Text and values of config.yaml and config.yaml.d, in the order in which they are read."""
        folder = f"{self.config}.d"
        dropped = [
            path for path in self.files if posixpath.dirname(path) == folder and path.endswith((".yaml", ".yml"))
        ]
        paths = [path for path in (self.config, *sorted(dropped)) if path in self.files]
        return {path: yamltext.parse(path, self.files[path]) for path in paths}

    def setting(self, *names: str) -> K3sSetting | None:
        """What counts of a setting: the command line, else the last file that says it."""
        words = self.request.flags
        for at in reversed(range(len(words))):
            name, equals, value = words[at].partition("=")
            if name in [f"--{n}" if len(n) > 1 else f"-{n}" for n in names]:
                return K3sSetting(value if equals else next(iter(words[at + 1 :]), ""))
        for path, (_, values) in reversed(self.documents.items()):
            for name in names:
                if isinstance(values.get(name), str | int | float):
                    return K3sSetting(str(values[name]), path)
        return None

    # ------------------------------------------------------------ containerd's files

    @property
    def folder(self) -> str:
        if self.request.config.endswith((".tmpl", ".toml")):
            return posixpath.dirname(self.request.config)
        data = self.setting("data-dir", "d")
        return f"{data.value.rstrip('/') if data else f'/var/lib/rancher/{self.kind}'}/agent/etc/containerd"

    @property
    def rendered(self) -> str:
        return f"{self.folder}/config.toml"

    @cached_property
    def root(self) -> dict[str, Any]:
        """What was rendered at the last start; {} before the first one."""
        return toml.parse(self.rendered, self.files[self.rendered])[1] if self.rendered in self.files else {}

    @cached_property
    def two(self) -> bool:
        """Whether containerd is 2.x."""
        if self.request.version or not self.root:
            return has_containerd_2(self.request.version)
        return self.root.get("version") == 3 or f"{self.folder}/config-v3.toml.tmpl" in self.files

    @property
    def template(self) -> str:
        """The path of the user's template that counts, "" where there is none."""
        names = ("config-v3.toml.tmpl", "config.toml.tmpl") if self.two else ("config.toml.tmpl",)
        named = posixpath.basename(self.request.config)
        if named.endswith(".tmpl") and named not in names and self.request.config in self.files:
            return self.request.config
        return next((path for name in names if (path := f"{self.folder}/{name}") in self.files), "")

    @cached_property
    def written(self) -> str:
        """The template's text without its comments."""
        if not self.template:
            return ""
        check_size(self.template, self.files[self.template])
        return _uncommented(decode(self.template, self.files[self.template]))

    @property
    def decides(self) -> bool:
        """Whether the user's template says itself which runtimes there are, or which one is the default."""
        named = re.search(rf"\.runtimes\.[\"']?{re.escape(self.request.name)}\b|\bdefault_runtime_name\b", self.written)
        return bool(self.template) and (named is not None or not _BASE.search(self.written))

    @property
    def names_all(self) -> bool:
        """Whether the template has the lines that are asked for, so that a start brings them into force."""
        request, text = self.request, self.written
        default = {"nvidia": request.name, "runc": "runc", "keep": ""}[request.default_runtime]
        named = re.findall(r"\bdefault_runtime_name *= *[\"']([^\"']*)", text)
        return (
            re.search(rf"\.runtimes\.[\"']?{re.escape(request.name)}\b", text) is not None
            and f'"{request.path}"' in text
            and (not default or (named or ["runc"])[-1] == default)
        )

    @property
    def version(self) -> int:
        """The config version of what is rendered next."""
        return 3 if self.two and not self.template.endswith("/config.toml.tmpl") else 2

    @property
    def section(self) -> toml.Path:
        """The table that has the runtimes."""
        return ("plugins", CRI[self.version], "containerd")

    @property
    def drop_ins(self) -> str:
        return f"{self.folder}/{'config-v3' if self.version == 3 else 'config'}.toml.d"

    @property
    def imports(self) -> bool:
        """Whether containerd reads drop-ins, key by key: from 2.0 on, where the rendered file names them."""
        return self.reads(f"{self.drop_ins}/99-nvidia.toml")

    def reads(self, path: str) -> bool:
        """Whether a file with this path would be a drop-in."""
        globs = self.root.get("imports", [])
        return self.two and isinstance(globs, list) and any(fnmatch.fnmatchcase(path, str(glob)) for glob in globs)

    @cached_property
    def dropped(self) -> dict[str, bytes]:
        """The drop-ins that are read."""
        return {
            p: d for p, d in self.files.items() if self.imports and fnmatch.fnmatchcase(p, f"{self.drop_ins}/*.toml")
        }

    # ------------------------------------------------------------ what comes of it

    @property
    def finds(self) -> bool:
        """Whether k3s adds the runtime under this name, with this path, by itself."""
        request = self.request
        folder, name = posixpath.split(request.path)
        if request.name != "nvidia" or name != "nvidia-container-runtime" or folder not in _FOLDERS:
            return False
        there = self.found
        return not there or there == request.path or there.startswith(OPERATOR)

    @property
    def found(self) -> str:
        """The binary of the runtime in what was rendered, "" for none."""
        plugin = CRI[3 if self.root.get("version") == 3 else 2]
        runtime = toml.lookup(self.root, ("plugins", plugin, "containerd", "runtimes", self.request.name))
        return str(_table(_table(runtime).get("options")).get("BinaryName", ""))

    def as_containerd(self, **changes: Any) -> tuple[dict[str, bytes], RuntimeRequest]:
        """The rendered file with its drop-ins, and the request for containerd's own editor."""
        drop_in = self.request.drop_in or f"{self.drop_ins}/99-nvidia.toml"
        number = self.request.release
        own = (1, 0) < number < (1, 20) or number >= (2, 0)
        version = self.request.version if own else "2.1" if self.two else "1.7"
        request = replace(
            self.request, distribution="", config=self.rendered, drop_in=drop_in, version=version, flags=(), **changes
        )
        return {**self.dropped, self.rendered: self.files.get(self.rendered, b"")}, request

    @cached_property
    def in_force(self) -> RuntimeState:
        """What containerd was started with."""
        return containerd.state(*self.as_containerd())


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# ---------------------------------------------------------------- the edit

SOURCE = "docs.k3s.io/advanced"
SOCKET = "/run/k3s/containerd/containerd.sock"
_Change = dict[str, bytes | None]


class Rancher:
    """The engine that k3s or RKE2 brings."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.CONFIG = f"/etc/rancher/{kind}/config.yaml"

    def patterns(self, files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
        """config.yaml and its drop-ins, the rendered file, templates, and containerd's drop-ins."""
        node = Node(self.kind, files, request)
        names = (
            "config.toml",
            "config.toml.tmpl",
            "config-v3.toml.tmpl",
            "config.toml.d/*.toml",
            "config-v3.toml.d/*.toml",
        )
        settings = (node.config, f"{node.config}.d/*.yaml", f"{node.config}.d/*.yml")
        templates = (request.config,) if request.config.endswith(".tmpl") else ()
        return (*settings, *templates, *(f"{node.folder}/{name}" for name in names))

    def configure(self, files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
        """What changes; an Edit with `restart` alone where the agent has only to start again."""
        node = Node(self.kind, files, request)
        _check_fixed(node)
        if node.decides:
            if _rendered_differs(node) and not node.names_all:
                raise _template_decides(node)
            return _edit(node, {})
        needed = bool(request.drop_in) or not node.finds or _cdi_differs(node)
        if node.imports and (needed or _drop_in_states(node)):
            changes = _by_drop_in(node, containerd.configure)
            return _edit(node, changes | ({} if _settles_default(node) else _default(node)))
        if not node.finds:
            raise Refusal(*_not_found(node))
        return _edit(node, _default(node))

    def unconfigure(self, files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
        """Removes the setting and what drop-ins name; what k3s finds, it adds again, and a template is its owner's."""
        node = Node(self.kind, files, request)
        changes = _by_drop_in(node, containerd.unconfigure) if node.dropped else {}
        setting = node.setting(SETTING)
        if setting and setting.value == request.name:
            changes |= _removed(node)
        stays = Reason(
            what=f"the runtime {request.name}",
            why=f"{self.kind} adds it at every start, as long as it finds nvidia-container-runtime",
            source=SOURCE,
        )
        return Edit(
            changes={path: data for path, data in changes.items() if files.get(path) != data},
            reasons=(
                *_reasons(changes, "no longer names the nvidia runtime"),
                *([stays] if node.finds and not node.decides else []),
            ),
            meant=_meant(node),
        )

    def state(self, files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
        """What containerd was started with; before the first start, what the settings will give."""
        node = Node(self.kind, files, request)
        found = node.in_force
        setting = node.setting(SETTING)
        return replace(
            found,
            default=setting.value if setting and not node.root else found.default,
            files=tuple(
                path for path in (*node.documents, node.rendered, node.template, *node.dropped) if path in files
            ),
        )

    def activation(self, facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
        """config.toml is rendered, and containerd started, when the service starts."""
        server = "rke2-server" if self.kind == "rke2" else "k3s"
        unit = runtime.unit or f"{server}.service"
        socket = runtime.socket or SOCKET
        dropped = next((path for path in edit.changes if ".toml.d/" in path), "")
        rendered = f"{posixpath.dirname(posixpath.dirname(dropped))}/config.toml"
        away = f"restarts {unit}: running containers keep running, Kubernetes on this node is away for up to a minute"
        return Activation(
            unit=unit,
            verb="restart",
            config=runtime.config,
            validate=(runtime.binary, "-c", rendered, "config", "dump") if dropped and runtime.binary else (),
            socket=socket,
            plugin="cri",
            health=(
                ("k3s", "ctr", "--address", socket, "version"),  # rke2 has no such command
                (f"/var/lib/rancher/{self.kind}/bin/ctr", "--address", socket, "version"),
                ("ctr", "--address", socket, "version"),
            ),
            disrupts=away if edit.changes or edit.restart else "",
        )


k3s, rke2 = Rancher("k3s"), Rancher("rke2")


# ---------------------------------------------------------------- what cannot be


def _check_fixed(node: Node) -> None:
    """Raise Refusal for what k3s decides by itself, and for what its version cannot do."""
    driver, have = node.request.cgroup_driver, node.in_force.cgroup_driver
    if driver and have and driver != have:
        raise Refusal(
            f"containerd of {node.kind} has the cgroup driver {have}, as {node.kind} has decided: "
            f"it cannot be {driver}",
            f"leave cgroup_driver at auto, and cgroup-driver out of kubelet-arg: {node.kind} sets both alike",
        )
    if node.request.drop_in and not node.reads(node.request.drop_in):
        raise Refusal(
            f"containerd of {node.kind} does not read {node.request.drop_in}",
            f"leave the drop-in out; releases of 2026 and later read {node.drop_ins}/*.toml",
        )
    if _cdi_differs(node) and not node.imports and not node.decides:
        raise Refusal(
            f"{node.kind} has its own setting of CDI, and this version has no drop-ins for containerd",
            f"update {node.kind}, or leave cdi out",
        )


def _cdi_differs(node: Node) -> bool:
    cdi, root = node.request.cdi, node.root
    if cdi is None:
        return False
    plugin = toml.lookup(root, ("plugins", CRI[3 if root.get("version") == 3 else 2])) or {}
    return bool(plugin.get("enable_cdi", node.two)) is not cdi


def _drop_in_states(node: Node) -> bool:
    """Whether a drop-in names the runtime, or a default one."""
    for path, data in node.dropped.items():
        for plugin in CRI.values():
            section = toml.lookup(toml.parse(path, data)[1], ("plugins", plugin, "containerd")) or {}
            if "default_runtime_name" in section or node.request.name in section.get("runtimes", {}):
                return True
    return False


# ---------------------------------------------------------------- containerd's drop-ins


def _settles_default(node: Node) -> bool:
    """Whether the default stands in a drop-in: the setting takes only what k3s finds, and a drop-in overrules it."""
    return not node.finds or any(b"default_runtime_name" in data for data in node.dropped.values())


def _by_drop_in(node: Node, edit: Callable[[Mapping[str, bytes], RuntimeRequest], Edit]) -> _Change:
    """What containerd's own editor makes of the drop-ins below the rendered file."""
    files, request = node.as_containerd()
    if not _settles_default(node):
        request = replace(request, default_runtime="keep")
    change = edit(files, request)
    if change.problems:
        raise Refusal(change.problems[0].what, change.problems[0].fix)
    return {path: data for path, data in change.changes.items() if path != node.rendered}


# ---------------------------------------------------------------- what gpunode leaves to a person


def _template_decides(node: Node) -> Refusal:
    """A template that names runtimes: the lines that it needs, or how k3s' own come back."""
    section = f"plugins.'{CRI[node.version]}'.containerd"
    name, default = node.request.name, node.request.default_runtime
    lines = [
        f"[{section}.runtimes.{name}]",
        '  runtime_type = "io.containerd.runc.v2"',
        f"[{section}.runtimes.{name}.options]",
        f'  BinaryName = "{node.request.path}"',
        "  SystemdCgroup = {{ .SystemdCgroup }}",
    ]
    if default != "keep":
        lines = [f"[{section}]", f'  default_runtime_name = "{name if default == "nvidia" else "runc"}"', *lines]
    return Refusal(
        f"{node.template} says which runtimes containerd has, and gpunode edits no template",
        'have these lines in it, or begin it with {{ template "base" . }} and remove its own runtimes and default:\n'
        + "\n".join(f"    {line}" for line in lines),
    )


def _not_found(node: Node) -> tuple[str, str]:
    if node.found:
        return (
            f"{node.kind} has found the runtime {node.request.name} at {node.found}, not at {node.request.path}",
            "ask for that path, or remove the other nvidia-container-runtime from the PATH of the service",
        )
    return (
        f"{node.kind} finds nvidia-container-runtime in {', '.join(_FOLDERS)} alone, and names it nvidia",
        f"leave name and path out, or update {node.kind}: releases of 2026 and later read {node.drop_ins}/*.toml",
    )


# ---------------------------------------------------------------- the default runtime


def _default(node: Node) -> _Change:
    """The setting in config.yaml, or the line of a template that names a default itself."""
    request = {"nvidia": node.request.name, "runc": "", "keep": None}[node.request.default_runtime]
    if request is None:
        return {}
    setting = node.setting(SETTING)
    if (setting.value if setting else "") == request:
        return {}
    if setting and not setting.path:
        raise Refusal(
            f"the service of {node.kind} is started with --{SETTING} {setting.value}",
            f"take --{SETTING} out of its unit (ExecStart), then run again",
        )
    if not request:
        return _removed(node)
    if not node.finds:
        raise Refusal(
            f"the default runtime {request} of {node.kind} is not one that it finds by itself",
            "set default_runtime to keep, and name the runtime in pods (runtimeClassName)",
        )
    path = setting.path if setting else node.config
    text = node.documents[path][0] if path in node.documents else ""
    return {path: yamltext.set_value(text, (SETTING,), request).encode()}


def _removed(node: Node) -> _Change:
    """All config files without the setting."""
    texts = {path: yamltext.remove(text, (SETTING,)) for path, (text, _) in node.documents.items()}
    return {path: text.encode() for path, text in texts.items()}


# ---------------------------------------------------------------- the outcome


def _edit(node: Node, changes: _Change) -> Edit:
    changes = {path: data for path, data in changes.items() if node.files.get(path) != data}
    waits = not changes and bool(node.root) and _rendered_differs(node)
    why = f"was rendered before {node.kind} had the nvidia runtime: it has to start again"
    return Edit(
        changes=changes,
        restart=waits,
        reasons=(
            *_reasons(changes, "gives containerd the nvidia runtime"),
            *([Reason(what=node.rendered, why=why, source=SOURCE)] if waits else []),
        ),
        meant=_meant(node),
    )


def _rendered_differs(node: Node) -> bool:
    request = {"nvidia": node.request.name, "runc": "runc", "keep": ""}[node.request.default_runtime]
    found = node.in_force
    return not found.path or (bool(request) and (found.default or "runc") != request)


def _reasons(changes: _Change, why: str) -> list[Reason]:
    stated = {"config.yaml": f"sets {SETTING}"}
    return [Reason(what=path, why=stated.get(posixpath.basename(path), why), source=SOURCE) for path in sorted(changes)]


def _meant(node: Node) -> tuple[str, ...]:
    section = ".".join(node.section)
    cdi = [f"{'.'.join(node.section[:2])}.enable_cdi"] if node.request.cdi is not None else []
    return (f"{section}.runtimes.{node.request.name}", f"{section}.default_runtime_name", *cdi)
