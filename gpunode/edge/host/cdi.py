"""The CDI specification of this machine's GPUs, for an engine that uses it: made by nvidia-ctk, and looked at."""

from __future__ import annotations

from dataclasses import replace

from gpunode.core.engines import BY_CDI
from gpunode.core.model import Outcome
from gpunode.core.remote import parse_outcome, program
from gpunode.edge.host.runtimes import Options, probed
from gpunode.edge.ssh.shell import local_run
from gpunode.node import script

SECTIONS = ("system", "driver", "nvidia_smi", "cdi", "files")


def misfits(options: Options) -> tuple[str, ...]:
    """Why the specification does not fit this machine; () where it does, or the engine does not use it."""
    if not _counts(options):
        return ()
    from gpunode.core.facts.cdi import stale

    return stale(probed(sections=SECTIONS))


def with_specification(options: Options, outcome: Outcome | None, *, check: bool) -> Outcome | None:
    """The outcome of an edit, and of the specification made after it; `check` changes nothing."""
    if not _counts(options) or outcome is None or outcome.status not in ("unchanged", "changed"):
        return outcome
    from gpunode.core.items.cdi import cdi_request
    from gpunode.edge.desired import load_templates

    templates = load_templates()
    units = {name: templates[f"cdi-refresh.{name}.j2"] for name in ("service", "path")}
    rc, stdout, _ = local_run(program(script("cdi.sh"), cdi_request(units, check=check)), timeout=300)
    made = parse_outcome(stdout, rc)
    status = outcome.status if made.status == "unchanged" else made.status
    message = made.message if outcome.status == "unchanged" else f"{outcome.message}; {made.message}"
    both = replace(made, status=status, message=message, changed=(*outcome.changed, *made.changed))
    return replace(both, notes=(*outcome.notes, *made.notes), log="\n".join(filter(None, (outcome.log, made.log))))


def _counts(options: Options) -> bool:
    return options.here and (bool(options.cdi) or options.runtime in BY_CDI)
