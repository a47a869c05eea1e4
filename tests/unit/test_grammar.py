"""What a node may call its things: real names fit, hostile ones are no facts, and plans refuse the node."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
import typing
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpunode.core import grammar
from gpunode.core.errors import InputError
from gpunode.core.facts import facts_from_data, facts_hash, facts_to_data, parse_probe
from gpunode.core.facts.vet import rules, vetted
from gpunode.core.grammar import Grammar
from gpunode.core.items import activation, package, sharing, smoke
from gpunode.core.items.preflight import mismatches
from gpunode.core.model import Distro, InstalledPackage, Kernel, NodeFacts
from gpunode.core.report.text import Detail, plan_data, plan_text
from gpunode.core.spec import parse_spec
from gpunode.core.spec.accept import AcceptSpec, check_accept
from gpunode.core.spec.module_parameters import check_parameters
from gpunode.core.spec.tuning import TuningSpec, check_tuning
from gpunode.core.validation import Shape, check_value
from gpunode.edge import load
from gpunode.edge.desired import DesiredState

CASES = Path(__file__).parent.parent / "cases" / "probes"
NAMES = sorted(folder.name for folder in CASES.iterdir())
MARKERS = ("{{", "{%", "{#")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
HOSTILE = (
    "{{lookup('pipe','id')}}",
    "{%x%}",
    "{#x#}",
    "6.1.0-50{{7*7}}-amd64",
    "\x1b]0;title\x07\x1b[31m",
    "\x9b31m",
    "\x00",
    "\x7f",
    "\u202egnp.exe",
    "\u2066x\u2069",
    "$(id)`id`;&|",
    "../../../etc/passwd",
    "a" * 100_000,
    "\udc9b",
)

REAL: dict[str, str] = {
    "KERNEL": "6.8.0-1021-aws 5.14.0-427.13.1.el9_4.x86_64 6.6.87.2-microsoft-standard-WSL2 6.1.0-rc7+ 6.6.63_1 "
    "5.15.0-1064-azure-fde 5.10.104-tegra 6.5.0-custom~1 5.15.0-206.153.7.el9uek.x86_64 5.14.0-427.el9.x86_64+rt "
    "4.4.0-19041-Microsoft 6.12.1-arch1-1 6.4.0-150600.21-default 4.18.0-553.el8_10.x86_64+debug 6.1.112",
    "ARCH": "x86_64 aarch64 armv7l ppc64le s390x riscv64 i686",
    "HOST": "gpu-a1 node_1 gpu1.example.com localhost.localdomain (none) ip-10-0-0-1 0x",
    "USER": "root deploy svc-gpu DOMAIN\\jane jane@example.com müller build$ user+1",
    "OWNER": "root:root root:adm 1000:1000 UNKNOWN:UNKNOWN",
    "DISTRO": "debian ubuntu rhel centos rocky almalinux ol amzn sles opensuse-leap arch void azurelinux",
    "RELEASE": "12 24.04 9.4 15.6 15-SP6 rolling 2023 testing/unstable 20250101 3.0.20240824",
    "PACKAGE": "libnvidia-ml1 libstdc++6 nvidia-driver-570-server zlib1g-dev:i386 containerd.io "
    "kmod-nvidia-latest-dkms kernel-devel-5.14.0-427.13.1.el9_4.x86_64 gtk+3.0 "
    "nvidia-open-driver-G06-signed-kmp-default python3.11 lib32-x@1",
    "VERSION": "580.95.05 1:2.3-4 3:550.54.14-1.el9 20.10.24+dfsg1 1.6.20~ds1 1.7.27-k3s1 1.31.5+rke2r1 2.0^git1 "
    "057-53.git20240104.el9 580.95.05-0ubuntu0.22.04.1 6.8.0-88.89 1.2.3~rc1+b1",
    "UNIT": "docker nvidia-persistenced.service cri-containerd-0aF1.scope dev-disk-by\\x2duuid.device "
    "user@1000.service snap.microk8s.daemon-containerd",
    "MODULE": "nvidia nvidia_uvm vfio-pci nvidia-nvswitch NVreg_EnableGpuFirmware",
    "SYSCTL": "net.ipv4.ip_forward net.bridge.bridge-nf-call-iptables net.ipv4.conf.eth0/100.forwarding",
    "PATH": "/etc/apt/sources.list.d/cuda.list /etc/yum.repos.d/copr:copr.fedorainfracloud.org:x.repo "
    "/etc/apt/sources.list.d/größe.list ../keyrings/cuda.gpg /etc/systemd/system/k3s@.service",
    "SOCKET": "/run/containerd/containerd.sock unix:///run/crio/crio.sock tcp://127.0.0.1:2375",
    "SLOT": "0000:17:00.0 000f:01:00.0 10000:e1:00.0",
    "GPU": "GPU-5a3c0000-1f2e-4d3c-8b7a-90ab12cd0000 31bd7f8e-1f2e-5d3c-8b7a-90ab12cd0001 "
    "MIG-5a3c0000-1f2e-4d3c-8b7a-90ab12cd0000 MIG-GPU-5a3c0000-1f2e-4d3c-8b7a-90ab12cd0000/1/0",
    "MIG": "1g.10gb 7g.80gb 1g.10gb+me 1c.2g.20gb 1g.24gb+me.all 1g.24gb-me 1g.12gb+gfx",
    "CDI_KIND": "nvidia.com/gpu example.org/net-card",
    "CDI_DEVICE": "0 all 0:1 GPU-5a3c0000-1f2e-4d3c-8b7a-90ab12cd0000 gpu0",
    "RECORD": "20261122T013821Z-packages-4711 01J9B run-1",
}


def grammars() -> list[tuple[str, Grammar]]:
    return [(name, one) for name, one in vars(grammar).items() if isinstance(one, Grammar)]


@pytest.mark.parametrize("name", REAL)
def test_real_names_fit_their_grammar(name: str) -> None:
    found: Grammar = getattr(grammar, name)
    assert [text for text in REAL[name].split() if not found.fits(text)] == []


@pytest.mark.parametrize(("name", "found"), grammars())
def test_no_grammar_takes_markers_controls_or_texts_without_end(name: str, found: Grammar) -> None:
    allowed = {"../../../etc/passwd"} if name in ("PATH", "NAME", "VALUE", "SETTING", "PARAMETER") else set()
    allowed |= {"$(id)`id`;&|"} if name in ("PATH", "NAME", "VALUE") else set()
    assert [text for text in HOSTILE if found.fits(text) and text not in allowed] == []
    assert found.fits(""), "nothing is known"
    assert found.source


def texts_of(kind: type) -> Iterator[tuple[type, str]]:
    """(class, field) of each field that can hold text, in NodeFacts and all that it is made of."""
    hints = typing.get_type_hints(kind)
    for one in dataclasses.fields(kind):
        inner = list(leaves(hints[one.name]))
        if any(leaf is str or isinstance(leaf, str) for leaf in inner):
            yield kind, one.name
        for leaf in inner:
            if dataclasses.is_dataclass(leaf):
                yield from texts_of(typing.cast(type, leaf))


def leaves(hint: Any) -> Iterator[Any]:
    inner = typing.get_args(hint)
    for one in inner:
        yield from leaves(one)
    if not inner:
        yield hint


def test_every_text_of_the_facts_has_a_rule() -> None:
    assert [(kind.__name__, name) for kind, name in texts_of(NodeFacts) if not rules(kind)[name]] == []


KERNEL = "6.1.0-50{{lookup('pipe','id>/tmp/x')}}-amd64"


def test_a_kernel_release_that_is_a_template_is_no_fact_and_the_plan_refuses_its_node_alone() -> None:
    text = (CASES / "debian12-h100-fresh" / "probe.txt").read_text()
    good, bad = parse_probe(text), parse_probe(text.replace("kernel 6.1.0-41-amd64", f"kernel {KERNEL}"))
    assert "lookup" not in repr(dataclasses.replace(bad, malformed=()))
    assert bad.malformed == (f"kernels: {KERNEL!r} is not a valid kernel release",)
    both = DesiredState({}, to_run=False)
    alone = both.plan("good", good).plan
    refused = both.plan("bad", bad).plan
    assert refused.steps == ()
    assert refused.problems[0].what.startswith('the node reports an invalid value: kernels: "6.1.0-50{{lookup')
    assert alone.steps and DesiredState({}, to_run=False).plan("good", good).plan == alone
    assert mismatches({"kernel": good.kernel}, bad)[0].startswith("kernels: ")


def test_what_no_decision_rests_on_becomes_a_note_and_prose_is_shown_with_its_controls_escaped() -> None:
    text = "#: gpunode-probe 1\n#: system\n| hostname a{{b}}\n| machine x86_64\n#: os_release\n"
    facts = parse_probe(text + '| ID=debian\n| PRETTY_NAME="De\x1b[31mbian"\n#: end\n')
    assert (facts.hostname, facts.malformed) == ("", ())
    assert facts.notes == ("system: 'a{{b}}' is not a valid host name",)
    assert facts.distro.name == "De\\x1b[31mbian"


def test_facts_that_were_saved_are_vetted_again_and_good_ones_stay_the_same_object() -> None:
    data = facts_to_data(NodeFacts(arch="x86_64")) | {"arch": "{{x}}"}
    facts = facts_from_data(data)
    assert (facts.arch, facts.malformed) == ("", ("system: '{{x}}' is not a valid architecture",))
    assert vetted(facts) is facts


def test_an_object_without_a_name_goes_whole_and_another_field_alone() -> None:
    facts = NodeFacts(
        kernels=(Kernel(release="6.1.0"), Kernel(release="{{x}}"), Kernel(release="6.2.0", module="{%x%}")),
        packages={"a": InstalledPackage(name="a", version="1"), "{#b#}": InstalledPackage(name="b", version="1")},
        distro=Distro(id="debian", version_id="12 or so"),
    )
    found = vetted(facts)
    assert found.kernels == (Kernel(release="6.1.0"), Kernel(release="6.2.0"))
    assert [*found.packages] == ["a"]
    assert found.distro == Distro(id="debian")
    assert len(found.malformed) == 2
    assert [(one.section, one.thing) for one in found.invalid] == [("kernels", "6.2.0"), ("packages", "b")]


# ---------------------------------------------------------------- any probe at all


@pytest.fixture(autouse=True)
def no_keys_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"a key")


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from strings(key)
            yield from strings(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from strings(one)


def templates_in(facts: NodeFacts, desired: DesiredState) -> set[str]:
    """The texts in the values of the plan's steps that Ansible would take for templates; the plan is shown as well."""
    plan = desired.plan("node1", facts).plan
    shown = plan_text(plan, detail=Detail(why=True, sources=True, diff=True)) + json.dumps(
        plan_data(plan), ensure_ascii=False, default=str
    )
    assert CONTROL.search(shown) is None
    shown.encode()
    return {text for text in strings([step.value for step in plan.steps]) if any(m in text for m in MARKERS)}


def planned_or_refused(text: str, desired: DesiredState, known: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """What every text has to come to: InputError, or facts that are data and a plan without templates from them."""
    desired._planned.clear()
    try:
        facts = parse_probe(text)
    except InputError:
        return
    facts_hash(facts)
    outside_of_files = dataclasses.replace(facts, files={})
    assert CONTROL.search(json.dumps(facts_to_data(outside_of_files, brief=True), ensure_ascii=False)) is None
    assert templates_in(facts, desired) <= known


@cache
def desired() -> DesiredState:
    return DesiredState({}, to_run=False)


@cache
def recorded(name: str) -> tuple[str, tuple[tuple[int, int], ...], frozenset[str]]:
    """A recorded probe, where its words are, each once, and the templates that its own files hold."""
    text = (CASES / name / "probe.txt").read_text()
    words = {found[0]: found.span() for found in re.finditer(r"[^\s|]+", text)}
    return text, tuple(words.values()), frozenset(templates_in(parse_probe(text), desired()))


def with_word(name: str, number: int, word: str, *, whole: bool = True) -> None:
    text, spans, known = recorded(name)
    start, end = spans[number % len(spans)]
    kept = "" if whole else text[start:end]
    planned_or_refused(f"{text[:start]}{kept}{word}{text[end:]}", desired(), set(known))


@pytest.mark.slow
def test_a_word_of_a_recorded_probe_replaced_by_anything_hostile_gives_no_template_and_no_control() -> None:
    chance = random.Random(20261123)
    for _ in range(500):
        with_word(chance.choice(NAMES), chance.randrange(10_000), chance.choice(HOSTILE), whole=chance.random() < 0.7)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_word_of_each_recorded_probe_replaced_by_something_hostile(name: str) -> None:
    for number in range(len(recorded(name)[1])):
        for one in (HOSTILE[0], HOSTILE[number % len(HOSTILE)]):
            with_word(name, number, one)
        with_word(name, number, HOSTILE[(number + 1) % len(HOSTILE)], whole=False)


@given(st.sampled_from(NAMES), st.data())
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_text_in_a_probe_gives_facts_or_an_input_error_and_a_plan_or_problems(
    name: str, data: st.DataObject
) -> None:
    text = recorded(name)[0]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 200)))
    put = data.draw(st.text(max_size=40) | st.sampled_from(HOSTILE))
    planned_or_refused(text[:start] + put + text[end:], desired(), set(recorded(name)[2]))


@given(st.text())
def test_any_text_at_all_is_a_probe_or_an_input_error(text: str) -> None:
    planned_or_refused(text, desired())
    planned_or_refused(f"#: gpunode-probe 1\n{text}\n#: end\n", desired())


def test_a_hostile_node_changes_nothing_in_the_plans_of_others() -> None:
    names = ("debian12-h100-fresh", "rocky9-h100-fresh")
    alone = [DesiredState({}, to_run=False).plan(name, parse_probe(recorded(name)[0])).plan for name in names]
    together = DesiredState({}, to_run=False)
    for number in range(0, 400, 7):
        text, spans, _ = recorded(names[0])
        start, end = spans[number % len(spans)]
        try:
            facts = parse_probe(text[:start] + HOSTILE[number % len(HOSTILE)] + text[end:])
        except InputError:
            continue
        together.plan(f"hostile-{number}", facts)
    assert [together.plan(name, parse_probe(recorded(name)[0])).plan for name in names] == alone


def takes(check: Callable[..., object], *values: Any) -> bool:
    try:
        check(*values)
    except InputError:
        return False
    return True


def request_takes(shape: Shape, value: Any) -> bool:
    return takes(check_value, "value", value, shape)


# what gpunode.yml takes of a kind of text, and what the request of its step takes
PAIRS: dict[str, tuple[Callable[[str], None], Shape, Callable[[str], Any]]] = {
    "sysctl": (
        lambda text: check_tuning(TuningSpec(sysctl={f"net.{text}": "1"})),
        activation.SHAPE,
        lambda text: {"sysctl": {f"net.{text}": "1"}},
    ),
    "sysctl value": (
        lambda text: check_tuning(TuningSpec(sysctl={"net.a": text})),
        activation.SHAPE,
        lambda text: {"sysctl": {"net.a": text}},
    ),
    "module parameter": (
        lambda text: check_parameters({"nvidia": {text: "1"}}),
        activation.SHAPE,
        lambda text: {"parameters": {text: "1"}},
    ),
    "value of a module parameter": (
        lambda text: check_parameters({"nvidia": {"a": text}}),
        activation.SHAPE,
        lambda text: {"parameters": {"a": text}},
    ),
    "image": (lambda text: check_accept(AcceptSpec(image=text)), smoke.SHAPE, lambda text: {"image": text}),
}
# what a fact may be, and what the request of its step takes
FACTS: dict[str, tuple[Grammar, Shape, Callable[[str], Any]]] = {
    "package": (grammar.PACKAGE, package.SHAPE, lambda t: {"remove": [t]}),
    "version": (grammar.VERSION, package.SHAPE, lambda t: {"install": [{"name": "a", "version": t}]}),
    "unit": (grammar.UNIT, activation.SHAPE, lambda t: {key: [t] for key in ("services", "enable", "mask", "restart")}),
    "module": (grammar.MODULE, activation.SHAPE, lambda t: {key: [t] for key in ("load", "unload")}),
    "sysctl": (grammar.SYSCTL, activation.SHAPE, lambda t: {"sysctl": {t: "1"}}),
    "sysctl value": (grammar.SETTING, activation.SHAPE, lambda t: {"sysctl": {"a": t}}),
    "kernel argument": (grammar.ARGUMENT_WORD, activation.SHAPE, lambda t: {"arguments": {t: "present"}}),
    "driver version": (grammar.VERSION, activation.SHAPE, lambda t: {"version": t}),
    "slot": (grammar.SLOT, sharing.MIG, lambda t: {"gpus": [{"slot": t, "mode": "on"}]}),
}
TWO = ["".join(pair) for pair in itertools.product(map(chr, (*range(9, 14), *range(32, 128), 0xE9, 0x2028)), repeat=2)]


@pytest.mark.parametrize("name", PAIRS)
def test_the_spec_takes_what_the_request_takes(name: str) -> None:
    check, shape, value = PAIRS[name]
    assert [text for text in TWO if takes(check, text) != request_takes(shape, value(text))] == []


def test_the_proxy_and_the_image_are_checked_when_the_spec_is_read() -> None:
    for data in ({"proxy": "http://a b"}, {"proxy": "proxy:3128"}, {"verify": {"image": "a b"}}):
        assert not takes(parse_spec, data)
    parse_spec({"proxy": "http://me:$'`secret@proxy:3128", "verify": {"image": "r.example/a@sha256:00"}})


@pytest.mark.parametrize("name", FACTS)
def test_the_request_takes_what_a_fact_may_be(name: str) -> None:
    found, shape, value = FACTS[name]
    texts = {"kernel argument": [f"a={t}" for t in TWO] + [f"{t}=1" for t in TWO]}.get(name, TWO)
    star = name == "version"  # that is asked for may end in *
    assert [t for t in texts if found.fits(t) != request_takes(shape, value(t)) and not (star and t[1] == "*")] == []


def test_a_setting_of_a_vlan_is_one_of_the_spec_the_facts_and_the_request() -> None:
    key = "net.ipv4.conf.eth0/100.rp_filter"
    check_tuning(TuningSpec(sysctl={key: "1"}))
    assert grammar.SYSCTL.fits(key)
    assert request_takes(activation.SHAPE, {"sysctl": {key: "1"}})
    for outside in ("net.//.kernel.x", "net./.x", "net..x", "net//x", "net.x.", "net.ipv4./x"):
        assert not grammar.SYSCTL.fits(outside), "dots and slashes are swapped"
