"""docs/kubernetes.md says what is so: its table of servers, its examples, its versions of charts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from kube_cases import KNOWN, NEWEST, OLDEST, complaint

from gpunode.core.knowledge.kubernetes import Server
from gpunode.core.spec import parse_spec
from gpunode.kube.core import cluster_of, render

PAGE = (Path(__file__).parents[2] / "docs/kubernetes.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [text for text in BLOCKS if not text.startswith("apiVersion:")]  # others are objects


def row(minor: int) -> str:
    apis = [KNOWN.api(kind, Server(1, minor)) for kind in ("RuntimeClass", "DeviceClass")]
    return f"| {' | '.join(f'`{api}`' if api else '–' for api in apis)} |"


def test_the_table_of_servers_is_what_is_known() -> None:
    shown: dict[int, str] = {}
    for first, last, rest in re.findall(r"^\| 1\.(\d+)(?: to 1\.(\d+))? (\|.*\|)$", PAGE, re.MULTILINE):
        shown |= dict.fromkeys(range(int(first), int(last or first) + 1), rest)
    assert shown == {minor: row(minor) for minor in range(OLDEST, NEWEST + 1)}


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_renders(text: str) -> None:
    rendered = render(cluster_of({"": parse_spec(yaml.safe_load(text))}, "1.36", KNOWN))
    assert rendered.problems == ()
    assert [reported for item in rendered.objects if (reported := complaint(item, "1.36"))] == []


def test_the_inventory_of_the_page_has_two_pools() -> None:
    block = next(text for text in re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    over = yaml.safe_load(block)["all"]["children"]["inference"]["vars"]["gpunode_spec"]
    cluster = cluster_of({"n1": parse_spec({}), "n3": parse_spec(over)}, "1.36", KNOWN)
    assert [(pool.name, pool.sharing.strategy) for pool in cluster.pools] == [("default", "none"), ("inference", "mps")]


def test_the_versions_of_charts_are_those_that_are_known() -> None:
    named = {
        "nvidia-device-plugin": "device plugin",
        "node-feature-discovery": "Node Feature Discovery",
        "dcgm-exporter": "DCGM exporter",
        "dra-driver-nvidia-gpu": "DRA driver",
        "gpu-operator": "GPU Operator",
    }
    text = " ".join(PAGE.split())
    assert [name for name, words in named.items() if f"{words} {KNOWN.charts[name].version}" not in text] == []
