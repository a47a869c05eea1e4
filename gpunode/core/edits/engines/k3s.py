"""k3s and RKE2: what gpunode writes is the setting `default-runtime`, and nothing of containerd's.

Both make containerd's config.toml again at every start of their agent, from a template of the user's, else from their
own.  Their own one, which a template takes over by `{{ template "base" . }}`, adds the runtimes that they find
(nvidia-container-runtime as `nvidia`), and takes the default one from `default-runtime`; there is no value for runc, as
k3s does not start with a default that it has not found.  Templates and drop-ins are read, and never edited.

Sources: k3s-io/k3s pkg/agent/containerd/{config,config_linux,runtimes}.go, pkg/agent/templates,
pkg/configfilearg/parser.go, pull requests 8470, 8936, 11088, 13680; docs.k3s.io/advanced; rancher/rke2-docs.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from gpunode.core.content import decode
from gpunode.core.edits.engines import containerd
from gpunode.core.edits.target import OPERATOR, Activation, Engine, Refusal, RuntimeRequest, RuntimeState, restarted
from gpunode.core.edits.text import toml, yamltext
from gpunode.core.engines import DISTRIBUTIONS
from gpunode.core.facts.flags import flag_values
from gpunode.core.facts.kubernetes import rancher_files
from gpunode.core.late import dataclass, regex, replace
from gpunode.core.model import Edit, NodeFacts, Reason, Runtime

SETTING = "default-runtime"
SOURCE = "docs.k3s.io/advanced"
_FOLDERS = ("/usr/local/nvidia/toolkit", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/sbin", "/bin")
_GO_COMMENT = regex(r"\{\{-?\s*/\*")
_LINE_COMMENT = regex(r"^[ \t]*#[^\n]*", re.MULTILINE)
_BASE = regex(r"\{\{-?\s*template\s+[\"`]base[\"`]\s+\.\s*-?\}\}")
_TEMPLATES = ("config-v3.toml.tmpl", "config.toml.tmpl")  # the first counts with containerd 2
_Change = dict[str, bytes | None]


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
        return named or DISTRIBUTIONS[self.kind].config

    @cached_property
    def documents(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Text and values of config.yaml and config.yaml.d, in the order in which they are read."""
        return {path: yamltext.parse(path, self.files[path]) for path in rancher_files(self.config, self.files)}

    def setting(self, *names: str) -> tuple[str, str]:
        """Value and file of what counts of a setting: the command line (no file), else the last that says it."""
        if given := flag_values(self.request.flags, *(f"--{n}" if len(n) > 1 else f"-{n}" for n in names)):
            return given[-1], ""
        for path, (_, values) in reversed(self.documents.items()):
            for name in names:
                if isinstance(values.get(name), str | int | float):
                    return str(values[name]), path
        return "", ""

    def without(self, value: str | None = None) -> _Change:
        """The config files without the setting; with a value, where they have it with that one."""
        named = {path: text for path, (text, values) in self.documents.items() if value in (None, values.get(SETTING))}
        return {path: yamltext.remove(text, (SETTING,)).encode() for path, text in named.items()}

    # ------------------------------------------------------------ containerd's files

    @property
    def folder(self) -> str:
        if self.request.config.endswith((".tmpl", ".toml")):
            return posixpath.dirname(self.request.config)
        data = self.setting("data-dir", "d")[0].rstrip("/") or f"/var/lib/rancher/{self.kind}"
        return f"{data}/agent/etc/containerd"

    @property
    def rendered(self) -> str:
        return f"{self.folder}/config.toml"

    @cached_property
    def root(self) -> dict[str, Any]:
        """What was rendered at the last start; {} before the first one."""
        return toml.parse(self.rendered, self.files[self.rendered])[1] if self.rendered in self.files else {}

    @cached_property
    def template(self) -> str:
        """The path of the user's template that counts, "" where there is none."""
        names = _TEMPLATES[1:] if self.root.get("version") == 2 else _TEMPLATES
        return next((path for name in names if (path := f"{self.folder}/{name}") in self.files), "")

    @cached_property
    def written(self) -> str:
        """The template without its comments."""
        text = decode(self.template, self.files[self.template]) if self.template else ""
        first, *rest = _GO_COMMENT.split(text)
        return _LINE_COMMENT.sub("", "".join([first, *(part.partition("*/")[2].partition("}}")[2] for part in rest)]))

    @property
    def has_base(self) -> bool:
        """Whether k3s' own runtimes and default are in what is rendered next."""
        return not self.template or _BASE.search(self.written) is not None

    @property
    def decides(self) -> bool:
        """Whether a template says itself which runtimes there are, or the runtime or the default once more."""
        own = rf"\.runtimes\.(?:[\"']?){re.escape(self.request.name)}(?:[\"']?)[\].]|\bdefault_runtime_name\b"
        return not self.has_base or re.search(own, self.written) is not None

    def _state(self, files: Mapping[str, bytes]) -> RuntimeState:
        version = self.request.version  # a Kubernetes' (1.31.5+k3s1), or containerd's
        if not ((1, 0) < self.request.release < (1, 20) or self.request.release >= (2, 0)):
            version = "1.7" if self.root.get("version") == 2 else "2.1"
        request = replace(self.request, distribution="", config=self.rendered, version=version, flags=())
        return containerd.state({self.rendered: b"", **files}, request)

    @cached_property
    def own(self) -> RuntimeState:
        """What was rendered, without drop-ins."""
        return self._state({path: data for path, data in self.files.items() if path == self.rendered})

    @cached_property
    def in_force(self) -> RuntimeState:
        """What containerd was started with."""
        return self._state(self.files)

    @property
    def dropped_in(self) -> bool:
        """Whether drop-ins say another runtime or default than what was rendered."""
        return (self.own.path, self.own.default) != (self.in_force.path, self.in_force.default)

    # ------------------------------------------------------------ what comes of it

    @property
    def asked(self) -> str:
        """The default that is asked for, "" for any."""
        return {"nvidia": self.request.name, "runc": "runc", "keep": ""}[self.request.default_runtime]

    def right(self, found: RuntimeState) -> bool:
        """Whether that has the runtime, and the default that is asked for."""
        there = found.path == self.request.path or (self.finds and found.path.startswith(OPERATOR))
        return there and self.asked in ("", found.default or "runc")

    @property
    def finds(self) -> bool:
        """Whether k3s adds the runtime under this name, with this path, by itself."""
        folder, name = posixpath.split(self.request.path)
        if self.request.name != "nvidia" or name != "nvidia-container-runtime" or folder not in _FOLDERS:
            return False
        return self.own.path in ("", self.request.path) or self.own.path.startswith(OPERATOR)


class Rancher:
    """The engine that k3s or RKE2 brings."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def patterns(self, files: Mapping[str, bytes], request: RuntimeRequest) -> tuple[str, ...]:
        """config.yaml and its drop-ins, the rendered file, templates, and containerd's drop-ins."""
        node = Node(self.kind, files, request)
        names = ("config.toml", *_TEMPLATES, "config.toml.d/*.toml", "config-v3.toml.d/*.toml")
        settings = (node.config, f"{node.config}.d/*.yaml", f"{node.config}.d/*.yml")
        return (*settings, *(f"{node.folder}/{name}" for name in names))

    def configure(self, files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
        """The setting; an Edit with `restart` alone where the agent has only to start again."""
        node = Node(self.kind, files, request)
        _check_fixed(node)
        if not node.finds or node.decides or node.dropped_in:
            if not node.right(node.in_force):
                raise _refusal(node)
            return Edit(meant=_meant(node))
        changes = {path: data for path, data in _default(node).items() if files.get(path) != data}
        waits = not changes and bool(node.root) and not node.right(node.own)
        if waits and request.rendered:
            raise Refusal(
                f"{node.rendered} is newer than nvidia-container-runtime and the settings, and is not as they say: "
                f"{self.kind} would bring nothing else when it starts again",
                f"journalctl -u '{self.kind}*': it looks for the runtime in {', '.join(_FOLDERS)}",
            )
        why = f"was rendered before {self.kind} had the nvidia runtime: it has to start again"
        again = Reason(what=node.rendered, why=why, source=SOURCE)
        return Edit(
            changes=changes,
            restart=waits,
            reasons=(*_reasons(changes), *([again] if waits else [])),
            meant=_meant(node),
        )

    def unconfigure(self, files: Mapping[str, bytes], request: RuntimeRequest) -> Edit:
        """Removes the setting; what k3s finds, it adds again, and the rest is its owner's."""
        node = Node(self.kind, files, request)
        changes = {path: data for path, data in node.without(request.name).items() if files.get(path) != data}
        stays = []
        if node.setting(SETTING) == (request.name, ""):
            stays.append((f"--{SETTING} {request.name}", f"stays: it is in the unit of {self.kind} (ExecStart)"))
        if node.in_force.path and (node.decides or node.dropped_in):
            place = node.template if node.decides else ", ".join(node.in_force.files[1:])
            stays.append((f"the runtime {request.name}", f"stays: {place} names it; gpunode writes settings alone"))
        elif node.finds and not node.decides:
            why = f"{self.kind} adds it at every start, as long as it finds nvidia-container-runtime"
            stays.append((f"the runtime {request.name}", why))
        reasons = (Reason(what=what, why=why, source=SOURCE) for what, why in stays)
        return Edit(changes=changes, reasons=(*_reasons(changes), *reasons), meant=_meant(node))

    def state(self, files: Mapping[str, bytes], request: RuntimeRequest) -> RuntimeState:
        """What containerd was started with; before the first start, what the settings will give."""
        node = Node(self.kind, files, request)
        found, setting = node.in_force, "" if node.root else node.setting(SETTING)[0]
        paths = (*node.documents, node.template, node.rendered, *found.files)
        there = tuple(dict.fromkeys(path for path in paths if path in files))
        theirs = found.runtimes if node.decides or node.dropped_in else dict.fromkeys(found.runtimes, "")
        return replace(found, runtimes=theirs, default=setting or found.default, files=there)

    def activation(self, facts: NodeFacts, runtime: Runtime, edit: Edit) -> Activation:
        """config.toml is rendered, and containerd started, when the service starts."""
        socket = runtime.socket
        return restarted(
            runtime,
            edit,
            "running containers keep running, Kubernetes on this node is away for up to a minute",
            plugin="cri",
            health=(
                ("k3s", "ctr", "--address", socket, "version"),  # rke2 has no such command
                (f"/var/lib/rancher/{self.kind}/bin/ctr", "--address", socket, "version"),
                ("ctr", "--address", socket, "version"),
            ),
        )


ENGINE, RKE2 = (
    Engine(one.patterns, one.configure, one.unconfigure, one.state, one.activation)
    for one in (Rancher("k3s"), Rancher("rke2"))
)


# ---------------------------------------------------------------- what cannot be


def _check_fixed(node: Node) -> None:
    """Raise Refusal for what k3s decides by itself, and what gpunode does not write for it."""
    request, driver, have = node.request, node.request.cgroup_driver, node.in_force.cgroup_driver
    if driver and have and driver != have:
        raise Refusal(
            f"containerd of {node.kind} has the cgroup driver {have}, as {node.kind} has decided: "
            f"it cannot be {driver}",
            f"leave cgroup_driver at auto, and cgroup-driver out of kubelet-arg: {node.kind} sets both alike",
        )
    if request.drop_in:
        raise Refusal(f"gpunode writes no drop-in for containerd of {node.kind}", "leave the drop-in out")
    if request.cdi is not None and node.root and request.cdi != node.in_force.cdi:
        raise Refusal(f"{node.kind} has its own setting of CDI, and gpunode does not change it", "leave cdi out")


def _refusal(node: Node) -> Refusal:
    """Where another decides which runtimes there are: what to do, so that k3s does."""
    kind, name, found = node.kind, node.request.name, node.own.path
    if not node.finds and found:
        return Refusal(
            f"{kind} has found the runtime {name} at {found}, not at {node.request.path}",
            "ask for that path, or remove the other nvidia-container-runtime from the PATH of the service",
        )
    if not node.finds:
        what = f"{kind} finds nvidia-container-runtime in {', '.join(_FOLDERS)} alone, and names it nvidia"
        return Refusal(what, "leave name and path out")
    line = f", and have {SETTING}: {name} in {node.config}" if node.asked == name else ""
    if not node.decides:
        what = f"a drop-in of containerd changes what {kind} renders: {', '.join(node.in_force.files[1:])}"
        return Refusal(what, f"remove the runtime {name} and default_runtime_name from it{line}")
    start = f"remove the runtime {name} and default_runtime_name from it"
    if not node.has_base:
        start = f'reduce it to {{{{ template "base" . }}}} and what is your own, without {name} and a default'
    what = f"{node.template} says which runtimes containerd has, and gpunode edits no template"
    return Refusal(what, f"{start}{line}; then start {kind} again")


def _default(node: Node) -> _Change:
    """The setting, in the file that says it last."""
    value = "" if node.asked == "runc" else node.asked
    found, path = node.setting(SETTING)
    if node.request.default_runtime == "keep" or found == value:
        return {}
    if found and not path:
        raise Refusal(
            f"the service of {node.kind} is started with --{SETTING} {found}",
            f"take --{SETTING} out of its unit (ExecStart), then run again",
        )
    if not value:
        return node.without()
    path = path or node.config
    text = node.documents[path][0] if path in node.documents else ""
    return {path: yamltext.set_value(text, (SETTING,), value).encode()}


def _reasons(changes: _Change) -> list[Reason]:
    verbs = {path: "sets" if SETTING in (data or b"").decode() else "removes" for path, data in changes.items()}
    return [Reason(what=path, why=f"{verb} {SETTING}", source=SOURCE) for path, verb in sorted(verbs.items())]


def _meant(node: Node) -> tuple[str, ...]:
    plugin = "io.containerd.grpc.v1.cri" if node.root.get("version") == 2 else "io.containerd.cri.v1.runtime"
    section = f"plugins.{plugin}.containerd"
    return (f"{section}.runtimes.{node.request.name}", f"{section}.default_runtime_name")
