"""Every way of sharing GPUs has its parts: what one forgets is named here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from kube_cases import CASES

from gpunode.core.sharing.rules import sharing_problems
from gpunode.core.spec import parse_spec
from gpunode.core.spec.kubernetes import MODES, SharingSpec, Strategy
from gpunode.kube.core.offers import expected
from gpunode.kube.core.render.plugin_config import plugin_config

ROOT = Path(__file__).parents[2]
RENDERED = {parse_spec(data).sharing.strategy for case in CASES for data in (case.spec, *case.hosts.values()) if data}


@pytest.mark.parametrize("name", sorted({*get_args(Strategy), *MODES}))
def test_a_way_of_sharing_has_a_name_a_row_a_case_and_pages(name: Strategy) -> None:
    assert name in get_args(Strategy), "Strategy of gpunode/core/spec/kubernetes.py does not have it"
    assert name in MODES, "MODES of gpunode/core/spec/kubernetes.py do not have it"
    assert name in RENDERED, "no case.yml of tests/cases/kube has it"
    for page in ("docs/sharing.md", "docs/kubernetes.md"):
        assert re.search(rf"^\| `{name}` \|", (ROOT / page).read_text(), re.MULTILINE), f"no row of {page} has it"


@pytest.mark.parametrize("name", [name for name, mode in MODES.items() if mode.most])
def test_a_node_offers_as_many_shares_as_its_way_of_sharing_has(name: Strategy) -> None:
    sharing = SharingSpec(strategy=name, replicas=2)
    shared = "sharing" in plugin_config(sharing, parse_spec({}).kubernetes.device_plugin)
    assert shared != MODES[name].in_cluster, "plugin_config.py lacks it, or its row lacks in_cluster"
    least = {name: amounts.start for name, amounts in expected(sharing).items()}
    assert least == {"nvidia.com/gpu": 2}, "kube/core/offers.py counts other resources"


@pytest.mark.parametrize("name", MODES)
def test_what_a_way_of_sharing_does_not_have_is_refused(name: Strategy) -> None:
    def refused(**asked: object) -> bool:
        data = {"strategy": name, "replicas": 2 if MODES[name].most else 0, **asked}
        return bool([*sharing_problems(parse_spec({"sharing": data}).sharing, "sharing")])

    assert not refused()
    assert refused(replicas=1) and refused(replicas=max(MODES[name].most + 1, 2))
    assert refused(rename_by_default=True) != bool(MODES[name].most)
    assert refused(mig={"profiles": {"1g.10gb": 1}}) == bool(MODES[name].no_mig)
