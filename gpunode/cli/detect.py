"""gpunode detect."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpunode.cli.common import PROBES, format_option, show_errors, target_options, worst_exit
from gpunode.cli.lazy import Verb
from gpunode.cli.output import echo, print_drawn, print_json, print_yaml
from gpunode.cli.terminal import screen
from gpunode.core.errors import GpunodeError, error_data
from gpunode.core.grouped import grouped

if TYPE_CHECKING:
    from gpunode.core.model import Kernel, NodeFacts, NvmlGpu, PciDevice, Runtime
    from gpunode.edge.detect import Detected, Targets


@click.command(
    cls=Verb,
    epilog="Examples:\n\n\b\n"
    "  gpunode detect --local\n"
    "  gpunode detect root@gpu1 gpu2:2222 --format json\n"
    "  gpunode detect -i inventory/hosts.yml --limit 'pool_a:!gpu7' --save probes/\n"
    "  gpunode detect --probe probes/*.probe\n"
    "  gpunode detect gpu1 --save report/ --redact     (to attach to a bug report)\n\n"
    "Exit codes: 0 all read, 1 a host's answer was no use, 2 usage, 4 a host is unreachable.",
)
@target_options
@PROBES
@click.option(
    "--save", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Keep the probe texts there."
)
@click.option(
    "--redact", is_flag=True, help="Take names, addresses, serial numbers and secrets out of what is shown and saved."
)
@format_option("text", "json", "yaml", "gres")
def detect(targets: Targets, save: Path | None, redact: bool, output_format: str) -> int:
    """Show what nodes have: distribution, kernels, GPUs, driver, engines, Kubernetes.  Changes nothing.

    HOST is [user@]host[:port]; ssh_config is honoured.  The node needs a POSIX shell and nothing else.
    """

    from gpunode.cli.progress import probing
    from gpunode.edge.detect import detect as ask
    from gpunode.edge.detect import save_probes

    there: list[Detected] = []
    try:
        with probing(output_format) as on_done:

            def done(one: Detected) -> None:
                there.append(one)
                on_done(one)

            host = ask(targets, on_done=done)
    except KeyboardInterrupt:
        if output_format == "text":
            _show(there, output_format)
        raise
    if save:
        paths = save_probes(save, host, redacted=redact)
        echo(f"saved: {len(paths)} in {save}", err=True)
    if redact:
        host = [_redacted(one, number) for number, one in enumerate(host, 1)]
    return worst_exit(error.outcome for error in _show(host, output_format))


def _redacted(host: Detected, number: int) -> Detected:
    from dataclasses import replace

    from gpunode.core.facts import parse_probe
    from gpunode.core.facts.redact import redact as without_names
    from gpunode.edge.detect import Detected
    from gpunode.edge.share import in_its_share

    if host.facts is None:
        return host

    def redacted() -> Detected:
        text = without_names(host.probe)
        return replace(host, host=f"node{number}", probe=text, facts=parse_probe(text), groups=())

    shown = in_its_share(f"node{number}", redacted)
    return Detected(host=f"node{number}", error=shown) if isinstance(shown, GpunodeError) else shown


def _show(host: Sequence[Detected], output_format: str) -> list[GpunodeError]:
    """Print the hosts; returns the errors, those of hosts that cannot be shown among them."""
    from gpunode.edge.share import in_its_share

    if output_format == "gres":
        from gpunode.core.report.slurm import gres_text

        for one in host:
            echo(gres_text(one.host, one.facts) if one.facts else f"# {one.host}: {one.error and one.error.what}")
        return [one.error for one in host if one.error]
    machine = output_format in ("json", "yaml")
    make: Callable[[Detected], Any] = _data if machine else _card if len(host) == 1 else _row
    made: list[tuple[Detected, Any]] = [
        (one, one.error or in_its_share(one.host, functools.partial(make, one))) for one in host
    ]
    errors = [(one.host, shown) for one, shown in made if isinstance(shown, GpunodeError)]
    if machine:
        data = [
            {"host": one.host, "error": error_data(shown)} if isinstance(shown, GpunodeError) else shown
            for one, shown in made
        ]
        (print_json if output_format == "json" else print_yaml)({"hosts": data})
        return [error for _, error in errors]
    good = [shown for _, shown in made if not isinstance(shown, GpunodeError)]
    if make is _card:
        for show in good:
            show()
    elif good:
        _table(good)
    show_errors(errors)
    return [error for _, error in errors]


def _data(host: Detected) -> dict[str, Any]:
    """One host as plain data, without content of files and secrets."""
    from gpunode.core.facts import shown_facts

    return {"host": host.host, "groups": list(host.groups), "facts": shown_facts(_facts(host))}


# ---------------------------------------------------------------- text


def _facts(host: Detected) -> NodeFacts:
    assert host.facts
    return host.facts


def _row(host: Detected) -> tuple[str, ...]:
    """A host as a line of the table; the last column names what is wrong, by the ids of checks."""
    facts = _facts(host)
    return (
        host.host,
        facts.distro.key or "?",
        facts.kernel,
        gpu_summary(facts),
        facts.driver.loaded or ("nouveau" if facts.driver.nouveau else "none"),
        ", ".join(f"{r.name} {r.version}".strip() for r in facts.runtimes) or "none",
        facts.kubernetes.kind or "none",
        ", ".join(dict.fromkeys(name for name, _ in _problems(facts))),
    )


_TITLES = ("HOST", "DISTRIBUTION", "KERNEL", "GPUS", "DRIVER", "ENGINES", "KUBERNETES", "PROBLEMS")


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    """Hosts with the same columns in one row; a table that is wider than the terminal as a block for each row."""
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.table import Table

    from gpunode.core.printable import names

    alike = grouped((tuple(columns), host) for host, *columns in rows)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in _TITLES:
        table.add_column(title)
    for same, hosts in alike.items():
        table.add_row(*map(escape, (names(hosts, 4), *same)))
    drawn = screen()
    if Measurement.get(drawn, drawn.options.update(max_width=10_000), table).maximum <= drawn.width:
        print_drawn(table)
        return
    for same, hosts in alike.items():
        print_drawn(f"[bold]{escape(names(hosts))}[/]")
        for title, text in zip(_TITLES[1:], same, strict=True):
            if text:
                print_drawn(f"  {title.lower():<13} {escape(text)}")


def _card(host: Detected) -> Callable[[], None]:
    """A host as a card, to be shown once it is known that all of it can be."""
    facts = _facts(host)
    sections, problems = list(_sections(host.host, facts)), [text for _, text in _problems(facts)]

    def show() -> None:
        from rich.markup import escape
        from rich.table import Table

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for title, lines in sections:
            grid.add_row(title, escape("\n".join(lines)))
        print_drawn(grid)
        for problem in problems:
            screen().print(f"[yellow]![/] {escape(problem)}")

    return show


def _sections(host: str, facts: NodeFacts) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of the card."""
    driver, kubernetes = facts.driver, facts.kubernetes
    yield "host", [host if host == facts.hostname else f"{host} ({facts.hostname})"]
    yield "distribution", [f"{facts.distro.name or facts.distro.key or 'unknown'}, {facts.arch}"]
    kind = ["a container"] if facts.container else []
    kind += [facts.virtualization] if facts.virtualization not in ("", "none") else []
    kind += [facts.tegra] if facts.tegra else []
    if kind:
        yield "kind", [", ".join(kind)]
    secure = {True: "on", False: "off", None: "none (no EFI)"}[facts.secure_boot]
    yield "Secure Boot", [secure]
    yield "kernels", [_kernel(kernel) for kernel in facts.kernels] or ["none found"]
    by_driver = {gpu.slot: gpu for gpu in facts.nvml}
    yield "GPUs", [_gpu(gpu, by_driver.get(gpu.slot)) for gpu in facts.gpus] or ["none"]
    if facts.nvswitches:
        yield "NVSwitch", [f"{len(facts.nvswitches)} bridges"]
    loaded = f"{driver.loaded} {driver.loaded_flavour}".strip() or ("nouveau" if driver.nouveau else "none")
    where = f" in {driver.elsewhere}" if driver.elsewhere else ""
    yield "driver", [f"loaded {loaded}, user space {driver.userspace or 'none'}{where}"]
    yield "CUDA", [", ".join(facts.cuda) + (f" (default {facts.cuda_default})" if facts.cuda_default else "") or "none"]
    yield "toolkit", [facts.toolkit or "none"]
    yield ("engines", [_engine(r) for r in facts.runtimes] or ["none"])
    kube = " ".join(filter(None, (kubernetes.kind, kubernetes.role, kubernetes.kubelet)))
    yield "Kubernetes", [(kube or "none") + (", GPU Operator" if kubernetes.gpu_operator else "")]
    held = sorted(p.name for p in facts.packages.values() if p.held)
    if held:
        yield "held packages", [", ".join(held)]
    yield "seen as", [f"{facts.user or '?'}{'' if facts.root else ' (not root)'}"]
    if hidden := _hidden(facts):
        yield "not visible", [f"without root: {hidden}; add --become to see all"]


_SHOWN = {"clients": "processes of others", "xids": "the kernel's log", "journal": "gpunode's journal", "system": ""}


def _hidden(facts: NodeFacts) -> str:
    """What the probe could not see because it was not root."""
    names = [] if facts.root else [name.removeprefix("file ") for name in facts.denied]
    return ", ".join(filter(None, (_SHOWN.get(name, name) for name in names)))


def _gpu(gpu: PciDevice, nvml: NvmlGpu | None) -> str:
    """A GPU by PCI; with the driver's settings of it where the driver runs: ECC, MIG, persistence mode."""
    from gpunode.core.report.seen import model_of
    from gpunode.edge.load import load_knowledge

    name = model_of(gpu, nvml, load_knowledge()) or "unknown model"
    modes = (("ECC", nvml.ecc_current), ("MIG", nvml.mig_current), ("persistence", nvml.persistence)) if nvml else ()
    words = [
        gpu.driver or "no driver bound",
        *(f"{mode} {_SWITCH[state]}" for mode, state in modes if state in _SWITCH),
    ]
    return f"{gpu.slot}  {name}  [{gpu.id}]  {', '.join(words)}{'  (virtual)' if gpu.virtual_function else ''}"


_SWITCH = {"Enabled": "on", "Disabled": "off"}


def _engine(engine: Runtime) -> str:
    state = ("running" if engine.active else "not running") if engine.unit else ""  # podman has no daemon
    return ", ".join(filter(None, (f"{engine.name} {engine.version}".strip(), state, engine.config)))


def _kernel(kernel: Kernel) -> str:
    has = ["running"] if kernel.running else []
    has += ["headers" if kernel.headers else "no headers"]
    has += [f"nvidia {kernel.module} {kernel.flavour}".strip()] if kernel.module else []
    has += [f"DKMS {kernel.dkms}"] if kernel.dkms else []
    return f"{kernel.release}: {', '.join(has)}"


def gpu_summary(facts: NodeFacts) -> str:
    """The models of a node, counted: 8 × H100 80GB HBM3."""
    from gpunode.core.report.seen import fleet_gpus, gpus_of
    from gpunode.edge.load import load_knowledge

    return fleet_gpus(list(gpus_of(facts, load_knowledge()))) or "none"


def _problems(facts: NodeFacts) -> Iterator[tuple[str, str]]:
    """What looks wrong, with a name: failed health checks, and what the probe could not see."""
    from gpunode.core.checks.health import health_checks
    from gpunode.edge.load import load_knowledge

    for check in health_checks(facts, load_knowledge()):
        if check.status in ("failed", "warning"):
            yield check.id, check.message + (f" ({check.fix})" if check.fix else "")
    if facts.broken_packages:
        yield "packages", f"broken packages: {', '.join(facts.broken_packages)}"
    if facts.package_lock:
        yield "packages", f"the package manager is locked by {facts.package_lock}"
    for text in (*facts.malformed, *map(str, facts.invalid), *facts.notes):  # SECTION: WHAT
        yield (text.partition(": ")[0] if ": " in text else "probe"), text
