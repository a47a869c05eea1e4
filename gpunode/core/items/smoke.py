"""What is proven by using the GPUs: what a node has to prove, the request of node/smoke/smoke.sh, its checks.

Request files: `gpus` (how many there are on PCI, or `found`: as many as there are then; 0 leaves the driver out),
`cuda` versions and `runtimes` one a line, `default_containerd` and `default_docker` (nvidia or runc), `toolkit` (1),
`image` (empty: one made on the node from its own shell), `socket` (of containerd, where it is not the usual one),
`log_containerd` and `log_docker` (what shows the engine's log, where that is not its own unit's).
Each check is a line `gpunode<TAB>check<TAB>ID|STATUS|MESSAGE|FIX`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args, get_type_hints

from gpunode.core.edits import probed_runtime_files
from gpunode.core.engines import ROWS
from gpunode.core.grammar import IMAGE, WORD
from gpunode.core.items.activation import switched_off
from gpunode.core.items.engine import requests
from gpunode.core.items.item import StepKind
from gpunode.core.model import Check, NodeFacts, Runtime, Solution
from gpunode.core.printable import shortened
from gpunode.core.remote import as_flags, as_lines, parse_outcome, values_of
from gpunode.core.solve.cuda import NEWEST
from gpunode.core.spec import Spec
from gpunode.core.validation import Shape, check_value, flag, mapping, pairs, text, texts

_RENDERED = "/agent/etc/containerd/config.toml"  # below the data directory of k3s and rke2
ENGINES = tuple(name for name, row in ROWS.items() if row.smoke)
_ENGINE = f"({'|'.join(ENGINES)})"
SHAPE = mapping(
    "What is proven by using the GPUs.",
    socket=text("Socket of containerd, where it is not the usual one.", r"/[^\s|]*"),
    runtimes=texts("Container engines whose containers get GPUs.", choices=ENGINES),
    default_runtime=pairs("Their default runtimes, by engine.", _ENGINE, "nvidia|runc"),
    logs=pairs("Commands that show an engine's log, by engine, where it is not its unit's.", _ENGINE, r"[^\n|]+"),
    image=text("Image that containers are made of; empty means one that is made on the node.", IMAGE.pattern),
    gpus=Shape(type="raw", doc="How many GPUs there are on PCI; C(found) means as many as there are then."),
    cuda=texts("Versions of CUDA to compile with, or C(newest).", r"\d+\.\d+|newest"),
    toolkit=flag("Whether nvidia-container-cli is tried; by default it is where an engine is."),
)
_STATUSES = get_args(get_type_hints(Check)["status"])


def smoke_files(value: Mapping[str, Any]) -> dict[str, bytes]:
    """{runtimes, default_runtime: {engine: nvidia|runc}, image, gpus, cuda, toolkit, socket, logs: by engine} → files.

    Raises InputError.
    """
    check_value("smoke", value, SHAPE)
    engines = list(value.get("runtimes") or ())
    gpus = value.get("gpus")
    lines = {
        "runtimes": engines,
        "cuda": list(value.get("cuda") or ()),
        "image": [value["image"]] if value.get("image") else [],
        "socket": [value["socket"]] if value.get("socket") else [],
        "gpus": [str(gpus if gpus == "found" else int(gpus or 0))],
    }
    lines |= {f"default_{engine}": [runtime] for engine, runtime in (value.get("default_runtime") or {}).items()}
    lines |= {f"log_{engine}": [log] for engine, log in (value.get("logs") or {}).items()}
    request = {name: as_lines(found) for name, found in lines.items() if found}
    return request | as_flags(toolkit=value.get("toolkit", bool(engines)))


def parse_checks(stdout: str, rc: int) -> tuple[Check, ...]:
    """The checks that smoke.sh printed; a script that did not end by itself adds the failed check `smoke.ran`."""
    checks = [_check(text) for text in values_of(stdout, "check")]
    outcome = parse_outcome(stdout, rc)
    if outcome.status != "unchanged":
        checks.append(Check(id="smoke.ran", status="failed", message=outcome.message, fix=outcome.fix))
    return tuple(checks)


def _check(text: str) -> Check:
    name, status, message, fix = (text.split("|") + [""] * 3)[:4]
    if not (name and WORD.fits(name)):
        text = f"smoke.sh names a check {shortened(name)}: {message}"
        return Check(id="smoke.ran", status="failed", message=text, fix=fix)
    if status not in _STATUSES:
        status, message = "failed", f"smoke.sh gave the status {status!r}: {message}"
    return Check(id=name, status=cast(Any, status), message=message, fix=fix)


def smoke_now(facts: NodeFacts, spec: Spec, solution: Solution) -> dict[str, Any]:
    """What the smoke checks have to prove on this node: of one that is prepared without a GPU only the compiler."""
    everything = smoke_request(facts, spec, solution)
    if spec.image.load or facts.driver.loaded:
        return everything
    return {**everything, "runtimes": [], "default_runtime": {}, "gpus": 0, "toolkit": False}


STEP = StepKind(
    shape=SHAPE,
    action="smoke",
    argument="smoke",
    base=lambda case, role: smoke_now(case.facts, case.spec, case.solution),
)


def smoke_request(facts: NodeFacts, spec: Spec, solution: Solution) -> dict[str, Any]:
    """What they have to prove of a node that has its GPUs: plain data for node/smoke/smoke.sh."""
    asked = [request for request, _ in requests(facts, spec)] if solution.toolkit else []
    off = {one.name for one in facts.runtimes if switched_off(facts, one)}
    engines = {one.runtime: one.default_runtime for one in asked if ROWS[one.runtime].smoke and one.runtime not in off}
    containerd = facts.runtime("containerd")
    logs = {name: log for name in engines if (found := facts.runtime(name)) and (log := engine_log(facts, found))}
    return {
        **({"socket": containerd.socket} if containerd and containerd.distribution and containerd.socket else {}),
        "runtimes": list(engines),
        "default_runtime": {name: default for name, default in engines.items() if default != "keep"},
        **({"logs": logs} if logs else {}),
        "image": spec.verify.image,
        "gpus": len(facts.gpus) if solution.driver else 0,
        "cuda": list(solution.cuda.versions or (NEWEST,)) if solution.cuda else [],
        "toolkit": bool(solution.toolkit),
    }


def engine_log(facts: NodeFacts, runtime: Runtime) -> str:
    """What shows an engine's log, as a person types it; "" where that is the unit of the engine's own name.

    k3s and rke2 have containerd write to a file below their data directory (https://docs.rke2.io/reference/logging).
    """
    shown = f"journalctl -u {runtime.unit.removesuffix('.service')}" if runtime.unit else ""
    if runtime.distribution in ("k3s", "rke2"):
        paths = probed_runtime_files(facts, runtime)
        rendered = next((path for path in paths if path.endswith(_RENDERED)), "")
        data = rendered.removesuffix(_RENDERED) or f"/var/lib/rancher/{runtime.distribution}"
        return " and ".join(filter(None, (f"{data}/agent/containerd/containerd.log", shown)))
    if runtime.distribution:
        return shown or f"the log of {runtime.distribution}"
    return shown if shown != f"journalctl -u {runtime.name}" else ""
