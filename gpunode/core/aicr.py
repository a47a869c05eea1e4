"""NVIDIA's AI Cluster Runtime (AICR): a host's facts as its snapshot, and what of its recipe a host alone can show.

Formats, paths and the grammar of constraints are those of github NVIDIA/aicr, v0.11.1 @bc05c6b and v1: pkg/snapshotter,
pkg/measurement/catalog.go, pkg/recipe, pkg/constraints, pkg/version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gpunode.core.engines import ROWS
from gpunode.core.errors import InputError
from gpunode.core.knowledge import Knowledge
from gpunode.core.model import Check, NodeFacts
from gpunode.core.untrusted import load_yaml

Reading = str | int | bool
Measurements = Mapping[str, Mapping[str, Mapping[str, Reading]]]  # type → subtype → key

_SNAPSHOT = "aicr.run/v1"
_RECIPES = (_SNAPSHOT, "aicr.run/v1beta2", "aicr.run/v1alpha2", "aicr.run/v1alpha3", "aicr.nvidia.com/v1alpha1")
_PHASES = ("readiness", "deployment", "performance", "conformance")
_DRIVER = "Deployment.gpu-driver.version"  # of a driver that the host has, which AICR asks a pod for
_TUNING = ("nodewright-customizations", "skyhook-customizations")
_OS = {"amazonlinux": "amzn"}  # where its word is not that of os-release
_UNLIMITED = 2**64 - 1  # systemd's infinity on D-Bus
_MODEL = re.compile(
    r"\b(GB300|GB200|GH200|B300|B200|B100|H800|H200|H100|H20|A800|A100|A40|A30|A16|A10|L40S|L40|L20|L4|L2"
    r"|V100S|V100|P100|P40|P10|P6|P4|T40|T10|T4|RTX PRO 6000)\b"
)


# ---------------------------------------------------------------- snapshot


def measurements(facts: NodeFacts, knowledge: Knowledge) -> Measurements:
    """What AICR's own collectors would say of the host, as far as a probe has it."""
    distro = facts.distro
    release = {
        "ID": distro.id,
        "VERSION_ID": distro.version_id,
        "VERSION_CODENAME": distro.codename,
        "ID_LIKE": " ".join(distro.like),
        "PRETTY_NAME": distro.name,
    }
    settings = {"kernel.osrelease": facts.kernel, **facts.sysctl}
    words = (word.partition("=") for word in facts.tuning.arguments)
    found: dict[str, dict[str, Mapping[str, Reading]]] = {
        "OS": {
            "release": {key: text for key, text in release.items() if text},
            "sysctl": {
                f"/proc/sys/{key.replace('.', '/')}": text
                for key, text in settings.items()
                if text and not key.startswith("net.")
            },
            "grub": {key: text for key, _, text in words},
            "kmod": dict.fromkeys(facts.modules, True),
        },
        "GPU": {"hardware": _hardware(facts, knowledge), "smi": _smi(facts)},
        "SystemD": dict(_units(facts)),
    }
    kept = {kind: {name: data for name, data in parts.items() if data} for kind, parts in found.items()}
    return {kind: parts for kind, parts in kept.items() if parts}


def _hardware(facts: NodeFacts, knowledge: Knowledge) -> dict[str, Reading]:
    model = accelerator(facts, knowledge)
    return {
        "gpu-present": bool(facts.gpus),
        "gpu-count": len(facts.gpus),
        "driver-loaded": bool(facts.driver.loaded),
        "detection-source": "gpunode",
        **({"model": model} if model else {}),
    }


def _smi(facts: NodeFacts) -> dict[str, Reading]:
    if not facts.nvml or not facts.driver.loaded:
        return {}
    first = facts.nvml[0]
    said = {"gpu.model": first.name, "gpu.persistence-mode": first.persistence, "gpu.vbios-version": first.vbios}
    known = {key: text for key, text in said.items() if text}
    return {"driver": facts.driver.loaded, "gpu-count": len(facts.nvml), **known}


def _units(facts: NodeFacts) -> Iterator[tuple[str, dict[str, Reading]]]:
    for name in dict.fromkeys([*(row.unit for row in ROWS.values() if row.daemon), "kubelet.service"]):
        service = facts.services.get(name.removesuffix(".service"))
        if service and service.active:
            limit = _UNLIMITED if service.memlock == "infinity" else service.memlock
            data = {"ActiveState": service.active, "UnitFileState": service.enabled, "LimitMEMLOCK": limit}
            yield (
                f"{name.removesuffix('.service')}.service",
                {key: int(v) if str(v).isdecimal() else v for key, v in data.items() if v},
            )


def accelerator(facts: NodeFacts, knowledge: Knowledge) -> str:
    """AICR's word for the first GPU: h100, l40s, rtx-pro-6000; "" where it has none, or there is no GPU."""
    row = knowledge.gpu(facts.gpus[0].id) if facts.gpus else None
    found = _MODEL.search(row.name) if row else None
    return found[1].lower().replace(" ", "-") if found else ""


def snapshot_text(facts: NodeFacts, knowledge: Knowledge, *, at: str) -> str:
    """The snapshot as YAML; `at` is the time of the probe (RFC 3339), "" where it is not known: AICR does without."""
    parts = [
        {"type": kind, "subtypes": [{"subtype": name, "data": dict(data)} for name, data in subtypes.items()]}
        for kind, subtypes in measurements(facts, knowledge).items()
    ]
    meta = {**({"timestamp": at} if at else {}), "source-node": facts.hostname}
    data = {"kind": "Snapshot", "apiVersion": _SNAPSHOT, "metadata": meta, "measurements": parts}
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


# ---------------------------------------------------------------- recipe


@dataclass(frozen=True, kw_only=True)
class RecipeConstraint:
    """A condition, such as OS.release.ID: ubuntu, and what the recipe says of breaking it."""

    name: str
    value: str
    severity: str = "error"
    remediation: str = ""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe that AICR has resolved (kind RecipeResult)."""

    criteria: Mapping[str, str]
    constraints: tuple[RecipeConstraint, ...] = ()
    components: tuple[str, ...] = ()
    validations: tuple[str, ...] = ()  # checks that AICR runs in a cluster
    driver: str = ""  # version that the GPU Operator is given
    tunes: tuple[str, str] = ("", "")  # accelerator and intent whose settings of hosts it wants


class _Texts(yaml.SafeLoader):
    """Scalars as they are written, as AICR reads them: 24.10 is no number."""

    yaml_implicit_resolvers: Mapping[str, Any] = {}  # type: ignore[assignment]


def parse_recipe(text: str | bytes, where: str) -> Recipe:
    """The YAML or JSON of a recipe.  Raises InputError for anything else, parts of recipes and other versions too."""
    data = load_yaml(text, where, _Texts)
    data = data if isinstance(data, Mapping) else {}
    kind, version = data.get("kind"), data.get("apiVersion")
    if kind != "RecipeResult" or version not in _RECIPES:
        part = kind in ("RecipeMetadata", "RecipeMixin", "RecipeCriteria")
        raise InputError(
            f"{where} is a {kind or 'file without kind'} of {version or 'no apiVersion'}",
            expected=f"kind RecipeResult of {', '.join(_RECIPES)}",
            fix="aicr recipe resolves it: give what it writes" if part else "aicr recipe … -o recipe.yaml writes one",
        )
    phases = [phase for name in _PHASES if (phase := _map(data, "validation", name, where=where))]
    listed = [*_maps(data, "constraints", where)]
    listed += [one for phase in phases for one in _maps(phase, "constraints", where)]
    refs = {_text(one, "name", where): one for one in _maps(data, "componentRefs", where)}
    over = {name: _map(one, "overrides", where=where) for name, one in refs.items()}
    components = {name: one for name, one in refs.items() if over[name].get("enabled") != "false"}
    operator = _map(over["gpu-operator"], "driver", where=where) if "gpu-operator" in components else {}
    said = _map(data, "criteria", where=where)
    criteria = {key: value for key, value in said.items() if isinstance(value, str) and value not in ("", "any")}
    return Recipe(
        criteria=criteria,
        constraints=tuple(_constraint(one, where) for one in listed),
        components=tuple(components),
        validations=tuple(str(name) for phase in phases for name in phase.get("checks") or ()),
        driver=str(operator.get("version", "")) if operator.get("enabled") != "false" else "",
        tunes=_tunes(criteria, refs, over),
    )


def _tunes(
    criteria: Mapping[str, str], refs: Mapping[str, Mapping[str, Any]], over: Mapping[str, Mapping[str, Any]]
) -> tuple[str, str]:
    """What NodeWright is given, else what the recipe is for; nothing where NodeWright is off, or given its no-op."""
    name = next((one for one in _TUNING if one in refs), "")
    given = over.get(name, {})
    nothing = any(str(path).endswith("/no-op.yaml") for path in refs.get(name, {}).get("manifestFiles") or ())
    if nothing or "false" in (given.get("enabled"), given.get("tuningEnabled")):
        return "", ""
    accelerator, intent = (str(given.get(key) or criteria.get(key, "")) for key in ("accelerator", "intent"))
    return accelerator, intent


def _map(data: Mapping[str, Any], *path: str, where: str) -> Mapping[str, Any]:
    """The mapping at that path, {} where there is none."""
    for name in path:
        inner = data.get(name) or {}
        if not isinstance(inner, Mapping):
            raise InputError(f"{where}: {name} is {inner!r}", expected="a mapping")
        data = inner
    return data


def _maps(data: Mapping[str, Any], name: str, where: str) -> list[Mapping[str, Any]]:
    listed = data.get(name) or []
    if not isinstance(listed, list) or not all(isinstance(one, Mapping) for one in listed):
        raise InputError(f"{where}: {name} is no list of mappings", expected="- name: …")
    return listed


def _text(data: Mapping[str, Any], name: str, where: str) -> str:
    text = data.get(name)
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{where}: {name} is {text!r}", expected="a text")
    return text.strip()


def _constraint(data: Mapping[str, Any], where: str) -> RecipeConstraint:
    return RecipeConstraint(
        name=_text(data, "name", where),
        value=_text(data, "value", where),
        severity=str(data.get("severity") or "error"),
        remediation=str(data.get("remediation") or ""),
    )


# ---------------------------------------------------------------- judgement


def recipe_checks(recipe: Recipe, facts: NodeFacts, knowledge: Knowledge) -> list[Check]:
    """Each condition that a host alone can show, judged as AICR does; all else of the recipe is not proven."""
    known = measurements(facts, knowledge)
    checks = [*_criteria(recipe, facts, knowledge), *(_judged(one, known, facts) for one in recipe.constraints)]
    if recipe.driver:
        asked = RecipeConstraint(name="driver", value=f"== {recipe.driver}")
        checks.append(_compared(asked, facts.driver.loaded, "the loaded driver"))
    if recipe.components or recipe.validations:
        text = f"for AICR in a cluster: components {', '.join(recipe.components) or 'none'}"
        text += f"; checks {', '.join(dict.fromkeys(recipe.validations))}" if recipe.validations else ""
        checks.append(Check(id="aicr.cluster", status="not-proven", message=text))
    return checks


def _criteria(recipe: Recipe, facts: NodeFacts, knowledge: Knowledge) -> Iterator[Check]:
    has = {"accelerator": accelerator(facts, knowledge), "os": facts.distro.id}
    for name, value in recipe.criteria.items():
        if name in has:
            asked = RecipeConstraint(name=f"criteria.{name}", value=_OS.get(value, value))
            yield _compared(asked, has[name], f"the host's {name}")
        elif name != "intent":
            text = f"the recipe is for {name} {value}, which no host says"
            yield Check(id=f"aicr.criteria.{name}", status="not-proven", message=text)


def _judged(one: RecipeConstraint, known: Measurements, facts: NodeFacts) -> Check:
    if one.name == _DRIVER:
        return _compared(one, facts.driver.loaded, "the loaded driver")
    kind, _, rest = one.name.partition(".")
    if kind not in ("OS", "GPU", "SystemD"):
        text = f"the recipe wants {one.name} {one.value}, which a host alone cannot show"
        return Check(id=f"aicr.{one.name}", status="not-proven", message=text)
    name, _, key = rest.rpartition(".") if kind == "SystemD" else rest.partition(".")
    reading = known.get(kind, {}).get(name, {}).get(key, "")
    said = str(reading).lower() if isinstance(reading, bool) else str(reading)  # as Go prints it
    return _compared(one, said, one.name)


def _compared(one: RecipeConstraint, actual: str, what: str) -> Check:
    name = f"aicr.{one.name}"
    if not actual:
        return Check(id=name, status="not-proven", message=f"{what} was not read; the recipe wants {one.value}")
    try:
        right = satisfies(actual, one.value)
    except ValueError as error:
        return Check(id=name, status="not-proven", message=f"{what} is {actual}: {error}")
    if right:
        return Check(id=name, status="passed", message=f"{what} is {actual}")
    text = f"{what} is {actual}, and the recipe wants {one.value}"
    return Check(
        id=name, status="warning" if one.severity == "warning" else "failed", message=text, fix=one.remediation
    )


_OPERATORS = (">=", "<=", "!=", "==", ">", "<")  # in the order in which they are looked for


def satisfies(actual: str, expression: str) -> bool:
    """Whether a value is what an expression of AICR asks for: alternatives by ||, each of terms that all hold.

    Raises ValueError where AICR refuses to compare.

    >>> satisfies("6.8.0-1024-aws", ">= 6.8"), satisfies("24.04", "24.04"), satisfies("1.35.1", ">= 1.33 < 1.35")
    (True, True, False)
    """
    clauses = [clause.strip() for clause in expression.split("||")]
    terms = [[_term(one) for one in re.split(r"(?<![ \t])[ \t]+(?=[<>!=])", clause)] for clause in clauses]
    return any(all(_holds(actual.strip(), *term) for term in clause) for clause in terms)


def _term(text: str) -> tuple[str, str]:
    """(operator, value) of one term."""
    operator = next((one for one in _OPERATORS if text.startswith(one)), "")
    value = text.removeprefix(operator).strip()
    if not value or (not operator and re.match(r"!\S", text)):
        raise ValueError(f"{text!r} is no condition")
    return operator, value


def _holds(actual: str, operator: str, value: str) -> bool:
    if not operator:
        return actual == value
    if operator in ("==", "!="):
        return _equal(actual, value) is (operator == "==")
    sign = _compare(version(actual), version(value))
    return {">=": sign >= 0, "<=": sign <= 0, ">": sign > 0, "<": sign < 0}[operator]


def _equal(actual: str, value: str) -> bool:
    """Versions by their numbers, where both are some; else texts."""
    if re.search(r"\d", value) and "." in value:
        try:
            left, right = version(actual), version(value)
        except ValueError:
            return actual == value
        return (*left, 0, 0)[:3] == (*right, 0, 0)[:3]
    return actual == value


def version(text: str) -> tuple[int, ...]:
    """One to three numbers; what follows a - or + behind a digit does not count.  Raises ValueError for other texts.

    >>> version("v1.28.0-gke.1337000"), version("580.95.05")
    ((1, 28, 0), (580, 95, 5))
    """
    main = re.split(r"(?<=\d)[-+]", text.removeprefix("v"), maxsplit=1)[0]
    if not re.fullmatch(r"\d{1,18}(\.\d{1,18}){0,2}", main, re.ASCII):
        raise ValueError(f"{text!r} is no version of one to three numbers")
    return tuple(map(int, main.split(".")))


def _compare(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """By as many numbers as both have: 6.8 is any 6.8.x."""
    count = min(len(left), len(right))
    return (left[:count] > right[:count]) - (left[:count] < right[:count])
