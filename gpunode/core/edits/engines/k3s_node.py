"""What the files of a k3s or RKE2 node say: its settings, what it has rendered, and what it will render next.

Both make containerd's config.toml anew at every start of their agent: from a template of the user's, else from their
own.  Their own template adds the runtimes that they find (nvidia-container-runtime as `nvidia`), and takes the default
one from the setting `default-runtime`.
Sources: k3s-io/k3s pkg/agent/containerd/{config,config_linux,runtimes}.go, pkg/configfilearg/parser.go, pull requests
8470, 8936, 11088, 13680; docs.k3s.io/advanced; rancher/rke2-docs docs/advanced.md.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gpunode.core.content import check_size, decode
from gpunode.core.edits.engine import RuntimeState
from gpunode.core.edits.engines import containerd
from gpunode.core.edits.request import Refusal, RuntimeRequest
from gpunode.core.edits.text import gotemplate, toml, yamltext
from gpunode.core.errors import InputError
from gpunode.core.numbers import release, whole

SETTING = "default-runtime"
OPERATOR = "/usr/local/nvidia/"  # where the GPU Operator's toolkit container installs
CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_ALWAYS = ("/usr/local/nvidia/toolkit", "/usr/bin")
_ON_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/sbin", "/bin")
# since which containerd, and which patch of each Kubernetes minor release, something is there
_SINCE: Mapping[str, tuple[tuple[int, int, int], Mapping[int, int]]] = {
    "containerd 2": ((2, 0, 0), {31: 6, 32: 2}),
    "base template": ((1, 7, 3), {24: 17, 25: 13, 26: 8, 27: 5, 28: 1}),
    "default-runtime": ((1, 7, 11), {26: 12, 27: 9, 28: 5, 29: 0}),
    "search on PATH": ((1, 7, 22), {28: 15, 29: 10, 30: 6, 31: 2}),
}


def has(feature: str, version: str) -> bool:
    """Whether the version, containerd's ("1.7.23-k3s2") or Kubernetes' ("v1.31.6+k3s1"), has it; unknown ones do.

    >>> has("containerd 2", "v1.31.5+k3s1"), has("containerd 2", "v1.31.6+rke2r1"), has("containerd 2", "2.0.2-k3s2")
    (False, True, True)
    """
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if not found:
        return True
    major, minor, patch = whole(found[1]), whole(found[2]), whole(found[3] or "")
    engine, releases = _SINCE[feature]
    if (major, minor) < (1, 20) or major > 1:
        return (major, minor, patch) >= engine
    return patch >= releases[minor] if minor in releases else minor > max(releases)


@dataclass(frozen=True)
class Setting:
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
        asked = "" if self.request.config.endswith((".tmpl", ".toml")) else self.request.config
        return asked or f"/etc/rancher/{self.kind}/config.yaml"

    @cached_property
    def documents(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Text and values of config.yaml and config.yaml.d, in the order in which they are read."""
        folder = f"{self.config}.d"
        dropped = [
            path for path in self.files if posixpath.dirname(path) == folder and path.endswith((".yaml", ".yml"))
        ]
        paths = [path for path in (self.config, *sorted(dropped)) if path in self.files]
        return {path: yamltext.parse(path, self.files[path]) for path in paths}

    def setting(self, *names: str) -> Setting | None:
        """What counts of a setting: the command line, else the last file that says it."""
        words = self.request.flags
        for at in reversed(range(len(words))):
            name, equals, value = words[at].partition("=")
            if name in [f"--{n}" if len(n) > 1 else f"-{n}" for n in names]:
                return Setting(value if equals else next(iter(words[at + 1 :]), ""))
        for path, (_, values) in reversed(self.documents.items()):
            for name in names:
                if values.get(name) is not None:
                    return Setting(str(values[name]), path)
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
            return has("containerd 2", self.request.version)
        return self.root.get("version") == 3 or f"{self.folder}/config-v3.toml.tmpl" in self.files

    @property
    def template(self) -> str:
        """The path of the user's template that counts, "" where there is none."""
        names = ("config-v3.toml.tmpl", "config.toml.tmpl") if self.two else ("config.toml.tmpl",)
        asked = posixpath.basename(self.request.config)
        if asked.endswith(".tmpl") and asked not in names and self.request.config in self.files:
            return self.request.config
        return next((path for name in names if (path := f"{self.folder}/{name}") in self.files), "")

    @property
    def version(self) -> int:
        """The config version of what is rendered next."""
        if self.template and not self.own_template and self.doc.get("version") in CRI:
            return int(self.doc["version"])
        return 3 if self.two and not self.template.endswith("/config.toml.tmpl") else 2

    @property
    def new_template(self) -> str:
        return self.template or f"{self.folder}/{'config-v3' if self.version == 3 else 'config'}.toml.tmpl"

    @cached_property
    def parsed(self) -> gotemplate.Template:
        """The user's template; an empty one where there is none."""
        if not self.template:
            return gotemplate.read("")
        check_size(self.template, self.files[self.template])
        return gotemplate.read(decode(self.template, self.files[self.template]))

    @cached_property
    def doc(self) -> dict[str, Any]:
        """What the template itself says."""
        try:
            return toml.parse(self.template, self.parsed.toml.encode())[1] if self.template else {}
        except InputError as error:
            raise Refusal(
                f"{error.what}: the template is no TOML even without its {{{{ actions }}}}",
                'write it so that it is TOML without them, or extend the distribution\'s own: {{ template "base" . }}',
            ) from None

    @property
    def section(self) -> toml.Path:
        """The table that has the runtimes: of version 1 where a template says everything itself and no version."""
        old = bool(self.template) and not self.own_template and self.doc.get("version", 1) == 1
        return ("plugins", "cri" if old else CRI[self.version], "containerd")

    @cached_property
    def own(self) -> dict[str, Any]:
        """What the template itself says of containerd's CRI runtimes, below [… containerd]."""
        return _table(toml.lookup(self.doc, self.section))

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
    def own_template(self) -> bool:
        """Whether the distribution's own template is rendered, alone or as a part of the user's."""
        return not self.template or self.parsed.base

    @property
    def extends(self) -> bool:
        """Whether what is rendered has the runtimes that k3s finds."""
        return self.own_template or self.parsed.uses(".ExtraRuntimes")

    @property
    def finds(self) -> bool:
        """Whether k3s adds the runtime under this name, with this path, by itself."""
        request = self.request
        folder, name = posixpath.split(request.path)
        folders = (*_ALWAYS, *(_ON_PATH if has("search on PATH", request.version) else ()))
        if request.name != "nvidia" or name != "nvidia-container-runtime" or folder not in folders:
            return False
        there = self.found
        return not there or there == request.path or there.startswith(OPERATOR) or self.owns

    @property
    def found(self) -> str:
        """The binary of the runtime in what was rendered, "" for none."""
        plugin = CRI[3 if self.root.get("version") == 3 else 2]
        runtime = toml.lookup(self.root, ("plugins", plugin, "containerd", "runtimes", self.request.name))
        return str(_table(_table(runtime).get("options")).get("BinaryName", ""))

    @property
    def owns(self) -> bool:
        """Whether the user's template names the runtime."""
        return self.request.name in _table(self.own.get("runtimes"))

    def as_containerd(self, **changes: Any) -> tuple[dict[str, bytes], RuntimeRequest]:
        """The rendered file with its drop-ins, and the request for containerd's own editor."""
        drop_in = self.request.drop_in or f"{self.drop_ins}/99-nvidia.toml"
        number = release(self.request.version)
        own = (1, 0) < number < (1, 20) or number >= (2, 0)
        version = self.request.version if own else "2.1" if self.two else "1.7"
        asked = replace(
            self.request, distribution="", config=self.rendered, drop_in=drop_in, version=version, flags=(), **changes
        )
        return {**self.dropped, self.rendered: self.files.get(self.rendered, b"")}, asked

    @cached_property
    def in_force(self) -> RuntimeState:
        """What containerd was started with."""
        return containerd.state(*self.as_containerd())


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
