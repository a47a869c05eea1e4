"""A KubeSchedulerConfiguration with gpushare's extender in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import yaml

from gpunode.core.edits.kubernetes.schemas import scheduler_faults
from gpunode.core.edits.target import Refusal
from gpunode.core.edits.text import yamltext
from gpunode.core.facts.flags import Flag, last_value
from gpunode.core.knowledge.scheduler import SchedulerRules
from gpunode.core.late import dataclass
from gpunode.core.model import Reason
from gpunode.core.plain import mapping, mappings

# ---------------------------------------------------------------- flags that --config makes void


def moved_flags(flags: Sequence[Flag], rules: SchedulerRules) -> dict[str, Any]:
    """Flags with a field of their own: `--kubeconfig`, `--leader-elect`, `--kube-api-qps` …"""
    config: dict[str, Any] = {}
    for moved in rules.moved:
        value = last_value(flags, moved.flag)
        if value is not None:
            holder = config
            for part in moved.field[:-1]:
                holder = holder.setdefault(part, {})
            holder[moved.field[-1]] = _typed(value, moved.type, moved.flag)
    return config


def _typed(value: str, kind: str, flag: str) -> Any:
    try:
        if kind == "bool":
            return {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}[value.lower()]
        return int(value) if kind == "int" else float(value) if kind == "float" else value
    except (KeyError, ValueError):
        raise Refusal(f"--{flag} is {value!r}, no {kind}", "fix the flag first") from None


# ---------------------------------------------------------------- the configuration

_VERBS = {"filterVerb": "filter", "bindVerb": "bind", "nodeCacheCapable": True, "ignorable": False}
_BY_HAND = "take it out, or into one extender, then run again"


@dataclass(frozen=True)
class Extender:
    """What the configuration should say: the extender's URL, "" keeps one that is there, else `default`.

    `loopback`: whether a NodePort answers on 127.0.0.1; where not, a URL that says so becomes the default one.
    """

    minor: int
    url: str
    default: str
    rules: SchedulerRules
    loopback: bool = True

    def entry(self) -> dict[str, Any]:
        """The extender as upstream has it."""
        url = self.url or self.default
        if not url:
            raise Refusal(
                "a NodePort does not answer on 127.0.0.1 with this kube-proxy, and the node's address is unknown",
                "give --extender-url, such as http://NODE:32766/gpushare-scheduler, or --node-address",
            )
        resources = [{"name": self.rules.resource, "ignoredByScheduler": False}]
        https = {"enableHTTPS": url.startswith("https:")}
        verbs = {"filterVerb": "filter", "bindVerb": "bind", **https, "nodeCacheCapable": True}
        return {"urlPrefix": url, **verbs, "managedResources": resources, "ignorable": False}


def new_config(extender: Extender, flags: Sequence[Flag]) -> bytes:
    """A KubeSchedulerConfiguration with the extender, and what the flags said that --config makes it pass over."""
    config: dict[str, Any] = {"apiVersion": extender.rules.api, "kind": "KubeSchedulerConfiguration"}
    config |= {**moved_flags(flags, extender.rules), "extenders": [extender.entry()]}
    _check(config, "the flags as a configuration", extender)
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=1000).encode()


# ---------------------------------------------------------------- one that is there


def merged_config(path: str, data: bytes, extender: Extender) -> tuple[bytes, tuple[Reason, ...]]:
    """The configuration with the extender; all else stays as it is written.

    Raises Refusal for what kube-scheduler would not start with, InputError for what is no YAML.
    """
    text, stated = yamltext.parse(path, data)
    if stated.get("kind") != "KubeSchedulerConfiguration":
        raise Refusal(
            f"{path} holds {stated.get('kind') or 'no kind'}, not KubeSchedulerConfiguration", "name the right file"
        )
    if (api := stated.get("apiVersion")) != extender.rules.api:
        fix = f"write it as {extender.rules.api}, then run again"
        raise Refusal(f"{path} is of {api}, and gpunode edits {extender.rules.api} alone", fix)
    _check(stated, path, extender)
    text, reasons = _with_extender(path, text, extender)
    _check(yamltext.load(text), path, extender)
    return text.encode(), reasons


def _check(data: Any, path: str, extender: Extender) -> None:
    faults = scheduler_faults(data, extender.minor, extender.rules)
    if faults:
        raise Refusal(
            f"{path}: kube-scheduler 1.{extender.minor} would not start with it: {'; '.join(faults[:5])}",
            "fix the file, then run again",
        )


# ---------------------------------------------------------------- the extender in it


def ours(extender: Any, rules: SchedulerRules) -> bool:
    """Whether an extender is gpushare's: it manages the resource, at a URL that ends as gpushare's does."""
    return manages(extender, rules) and str(mapping(extender).get("urlPrefix")).rstrip("/").endswith(rules.url_path)


def manages(extender: Any, rules: SchedulerRules) -> bool:
    return any(one.get("name") == rules.resource for one in mappings(extender, "managedResources"))


def _with_extender(path: str, text: str, extender: Extender) -> tuple[str, tuple[Reason, ...]]:
    stated = yamltext.load(text)
    extenders = stated.get("extenders") if isinstance(stated, dict) else None
    if extenders is not None and not isinstance(extenders, list):
        raise Refusal(f"{path}: extenders is no list", "fix the file, then run again")
    for at, one in enumerate(extenders or ()):
        if ours(one, extender.rules):
            return _repaired(path, text, at, one, extender)
        if manages(one, extender.rules) or mapping(one).get("bindVerb"):
            what = (
                f"manages {extender.rules.resource}"
                if manages(one, extender.rules)
                else "binds pods, which only one can"
            )
            raise Refusal(f"{path}: another extender, {mapping(one).get('urlPrefix')}, {what}", _BY_HAND)
    entry = extender.entry()
    text = yamltext.append(text, ("extenders",), entry)
    why = f"gpushare's extender at {entry['urlPrefix']} decides on {extender.rules.resource}"
    return text, (Reason(what=path, why=why, source=extender.rules.extender_source),)


def _repaired(
    path: str, text: str, at: int, there: Mapping[str, Any], extender: Extender
) -> tuple[str, tuple[Reason, ...]]:
    """An extender of gpushare's that is there: its URL as asked, its verbs as gpushare has them."""
    url = str(mapping(there).get("urlPrefix"))
    if not extender.loopback and urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1"):
        url = extender.entry()["urlPrefix"]
    wanted: dict[str, Any] = {"urlPrefix": extender.url or url, **_VERBS}
    reasons = []
    for key, value in wanted.items():
        if there.get(key, False) != value:
            text = yamltext.set_value(text, ("extenders", at, key), value)
            why = f"is {json.dumps(value)}, it was {json.dumps(there.get(key))}"
            reasons.append(Reason(what=f"{path}: {key}", why=why, source=extender.rules.extender_source))
    for number, one in enumerate(there["managedResources"]):
        if mapping(one).get("name") == extender.rules.resource and mapping(one).get("ignoredByScheduler"):
            text = yamltext.set_value(text, ("extenders", at, "managedResources", number, "ignoredByScheduler"), False)
            why = "kube-scheduler itself counts the resource too"
            reasons.append(Reason(what=f"{path}: ignoredByScheduler", why=why, source=extender.rules.extender_source))
    return text, tuple(reasons)


def without_extender(
    path: str, data: bytes, rules: SchedulerRules, *, created: bool
) -> tuple[bytes | None, tuple[Reason, ...]]:
    """The file without gpushare's extender; None where configure created it, and nothing but what it writes is left."""
    text, stated = yamltext.parse(path, data)
    extenders = stated.get("extenders")
    mine = [at for at, one in enumerate(extenders or ()) if ours(one, rules)] if isinstance(extenders, list) else []
    if not mine:
        return data, ()
    written = {"apiVersion", "kind", "extenders", "clientConnection", "leaderElection"}
    why = "gpushare's extender goes"
    reasons = (Reason(what=path, why=why),)
    if created and len(mine) == len(extenders or ()) and set(stated) <= written:
        return None, reasons
    for at in reversed(mine):
        text = yamltext.remove(text, ("extenders", at))
    if len(mine) == len(extenders or ()):
        text = yamltext.remove(text, ("extenders",))
    return text.encode(), reasons
