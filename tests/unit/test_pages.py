"""How tutorial and examples are followed (tests/page.py), and the example that needs no node, followed."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from api_nodes import COUNT, MEMORY, Nodes
from api_server import ApiServer
from edit_cases import case, write_tree
from kube_cluster import node
from page import Command, File, Reader, missing, section, steps

pytest_plugins = ("kube_fixtures",)

ROOT = Path(__file__).parents[2]
GPUSHARE = "The old instructions, and what replaces them"
PAGE = """
```console
$ one  # a comment
shown
… more
$ two | three \\
    --four   # exit code 3
```

```yaml title="a/b.yml"
key: value
```

```yaml
not: followed
```
"""


def test_a_page_is_files_and_commands_in_their_order() -> None:
    assert steps(PAGE) == [
        Command("one  # a comment", ("shown", "… more")),
        Command("two | three     --four", (), 3),
        File("a/b.yml", "key: value\n"),
    ]


@pytest.mark.parametrize(
    ("shown", "lost"),
    [
        ((), None),
        (("one two", "three"), None),
        (("three", "one"), "one"),
        (("one … two",), None),
        (("two … one",), "two … one"),
        (("four",), "four"),
    ],
)
def test_what_is_shown_has_to_be_printed_in_this_order(shown: tuple[str, ...], lost: str | None) -> None:
    assert missing(shown, "one   two\nthree\n") == lost


def test_a_section_ends_where_the_next_one_of_its_level_begins() -> None:
    page = "# A\n\n## B\none\n```sh\n# two\n```\n### C\nthree\n## D\nfour\n"
    wanted = {"B": "one\n```sh\n# two\n```\n### C\nthree\n", "C": "three\n", "D": "four\n"}
    assert {title: section(page, title) for title in wanted} == wanted


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path, os.environ, instead={"mine": "echo yours"}, timeout=60)


def test_a_reader_writes_types_answers_and_reads(reader: Reader) -> None:
    page = """
```yaml title="x.yml"
x: 1
```
```console
$ cat x.yml
x: 1
$ cd /; mine
yours
$ pwd; false   # exit code 1
/
```
"""
    assert reader.follow(page) == 3
    printed = reader.do(Command('read -p "Go on? [y/N]: " x; echo "got $x"', ("Go on? [y/N]: y", "got y")))
    assert printed.endswith("got y\n")


@pytest.mark.parametrize("command", [Command("false"), Command("echo a", ("b",)), Command('read -p "? [y/N]: "')])
def test_a_reader_fails_where_the_page_is_wrong(reader: Reader, command: Command) -> None:
    with pytest.raises(AssertionError, match=re.escape(command.line)):
        reader.do(command)


def test_every_command_of_the_chinese_tutorial_is_that_of_the_english_one() -> None:
    ours, theirs = (
        re.findall(r"^```.*?^```$", (ROOT / f"docs/{name}").read_text(), re.MULTILINE | re.DOTALL)
        for name in ("tutorial.md", "tutorial.zh-CN.md")
    )
    assert theirs == ours


def test_every_command_of_the_chinese_readme_is_that_of_the_english_one() -> None:
    command = re.compile(r"^\$ .*?(?=\s+#|$)", re.MULTILINE)
    assert command.findall((ROOT / "README.zh-CN.md").read_text()) == command.findall((ROOT / "README.md").read_text())


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_a_chinese_page_says_what_the_english_one_says(name: str) -> None:
    """Paragraph by paragraph: the same words of programs, numbers, emphasis, links and rows of tables."""

    def paragraphs(name: str) -> list[object]:
        text = re.sub(r"<!--.*?-->\n*|^```.*?^```$", "", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
        signs = r"`[^`\n]+`|\d+(?:\.\d+)*|\*\*|^#+|\]\([^)#]+|\n"
        return [
            Counter(re.findall(signs, one.replace(".zh-CN", ""), re.MULTILINE))
            for one in re.split(r"\n\n+", text.strip())
        ]

    theirs = name.replace(".md", ".zh-CN.md")
    assert paragraphs(theirs) == paragraphs(name)
    assert "虚拟" not in (ROOT / theirs).read_text(), "that is vGPU: a faked one is 模拟"


def at_cluster(folder: Path, server: ApiServer, instead: dict[str, str] | None = None) -> Reader:
    """Somebody with gpunode on the PATH and a kubeconfig of the cluster."""
    program = folder / "bin/gpunode"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpunode "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig")),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    return Reader(folder, environment, instead=instead or {}, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize(("title", "host"), [("kubeadm with containerd", "gpu1"), ("k3s and RKE2", "k1")])
def test_the_clusters_half_of_an_example(title: str, host: str, server: ApiServer, tmp_path: Path) -> None:
    """The nodes' half is followed in tests/lab/test_how_to.py."""
    server.put(node(host, allocatable={"nvidia.com/gpu": "1"}))
    Nodes(server)
    reader = at_cluster(tmp_path, server)
    reported = steps(section((ROOT / "docs/cluster.md").read_text(), title))
    here = [step for step in reported if isinstance(step, Command) and re.match(r"gpunode (init|kube) ", step.line)]
    assert len(here) >= 4
    for command in here:
        reader.do(command)
    reader.close()


@pytest.mark.slow
def test_gpushare(server: ApiServer, tmp_path: Path) -> None:
    server.put(node("gpu1", allocatable={MEMORY: "32", COUNT: "2", "nvidia.com/gpu": "0"}))
    Nodes(server)
    host = tmp_path / "control-plane"
    write_tree(case("scheduler", "kubeadm-1.34").before, host)
    reader = at_cluster(tmp_path, server, {"--kube-proxy": f"--root {host} --kube-proxy"})
    assert reader.follow(section((ROOT / "docs/gpushare.md").read_text(), GPUSHARE)) == 7
    assert (host / "etc/kubernetes/scheduler-policy-config.yaml").read_text().count("urlPrefix:") == 1
    reader.close()
