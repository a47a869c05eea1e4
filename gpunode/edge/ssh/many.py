"""Shell programs on many hosts at once.

A program (core/remote.py) goes to the standard input of `sh -s`, as root by sudo where asked, and its output comes
back, bounded in time and size.  Where paramiko cannot serve a host, Ansible runs it over whatever connection it has.
Every way to fail is an UnreachableError that names host, cause and next step.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gpunode.core.errors import GpunodeError, UnreachableError
from gpunode.core.late import dataclass, field
from gpunode.edge.isolate import as_error
from gpunode.edge.programs import python_module, use_installed_locale
from gpunode.edge.side_by_side import Deadline, side_by_side
from gpunode.edge.ssh.connection import Jumps, NotServed, connect
from gpunode.edge.ssh.shell import Target, local_run

MOST_MEMORY = 1 << 20  # KiB of each of Ansible's processes, which keep all that a node prints


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How many hosts are asked at a time, how they are reached, and how long each of them may take."""

    forks: int = 50
    connect_timeout: float = 10  # seconds for each of: TCP, the banner, the key exchange, authentication
    timeout: float = 120  # seconds for all that is done with one host
    accept_new: bool = False  # add unknown host keys to known_hosts
    stop: threading.Event = field(default_factory=threading.Event)  # when it is set, all is to end
    # for Ansible alone
    inventory: tuple[str, ...] = ()  # the user's own; without one the targets are its hosts
    become: bool = False
    become_password: str = field(default="", repr=False)
    vault_password_files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a program on one host: its output, or the error that kept it from running."""

    target: Target
    rc: int = 0
    stdout: str = ""
    stderr: str = ""
    error: GpunodeError | None = None


def run_many(
    pairs: Sequence[tuple[Target, str]],
    *,
    reach: Reach | None = None,
    on_done: Callable[[Ran], None] = lambda ran: None,
) -> list[Ran]:
    """Run on each target its program; the results in the order of `pairs`, errors among them.

    `on_done` sees each result when it is there.  Raises InterruptedByUser when `reach.stop` is set.
    """
    how = reach or Reach()
    with Jumps(timeout=how.connect_timeout, accept_new=how.accept_new) as jumps:

        def one(pair: tuple[Target, str], deadline: Deadline) -> Ran:
            target, program = pair
            try:
                if target.connection not in ("ssh", "local"):
                    raise NotServed(f"{target.name}: over the connection {target.connection} Ansible alone reaches it")
                if target.connection == "local":
                    rc, stdout, stderr = local_run(program, target=target, deadline=deadline)
                else:
                    with connect(
                        target, timeout=how.connect_timeout, accept_new=how.accept_new, jumps=jumps, deadline=deadline
                    ) as connection:
                        rc, stdout, stderr = connection.run(program, deadline=deadline)
            except Exception as error:  # a bug met on one host must not take the others along
                return Ran(target=target, error=target.hidden_in(as_error(error, host=target.name, hide=target.hidden)))
            return Ran(target=target, rc=rc, stdout=target.hidden(stdout), stderr=target.hidden(stderr))

        def done(ran: Ran) -> None:
            if not isinstance(ran.error, NotServed):
                on_done(ran)

        ran = side_by_side(one, pairs, at_once=how.forks, seconds=how.timeout, late=_late, on_done=done, stop=how.stop)
    left = [pair for pair, one in zip(pairs, ran, strict=True) if isinstance(one.error, NotServed)]
    by_ansible = side_by_side(partial(_by_ansible, how), [left] if left else [], at_once=1, stop=how.stop)
    answers = {one.target.name: one for came in by_ansible for one in came}
    for answer in answers.values():
        on_done(answer)
    return [answers.get(one.target.name, one) for one in ran]


def _late(pair: tuple[Target, str], deadline: Deadline) -> Ran:
    return Ran(target=pair[0], error=deadline.late(pair[0].name))


def _by_ansible(how: Reach, pairs: Sequence[tuple[Target, str]], deadline: Deadline) -> list[Ran]:
    """The same by the `ansible` of this Python, on the user's own inventory where there is one."""
    from gpunode.core.plan.playbook import dump
    from gpunode.edge.ansible.inventory import inventory_vars

    with tempfile.TemporaryDirectory(prefix="gpunode-") as name:  # 0700: programs and passwords lie here for a moment
        folder = Path(name)
        (folder / "programs").mkdir()
        for target, program in pairs:
            (folder / "programs" / target.name).write_text(program, encoding="utf-8")
        variables = {target.name: inventory_vars(target) for target, _ in pairs}
        (folder / "inventory.yml").write_text(dump({"all": {"hosts": variables}}), encoding="utf-8")
        (folder / "limit").write_text("".join(f"{name}\n" for name in variables), encoding="utf-8")
        password = {"ansible_become_password": how.become_password} if how.become_password else {}
        (folder / "extra.yml").write_text(dump(password), encoding="utf-8")
        use_installed_locale()
        start, _ = python_module("ansible")
        script = {"cmd": f"{folder}/programs/{{{{ inventory_hostname }}}}", "executable": "/bin/sh"}
        command = ["sh", "-c", f'ulimit -d {MOST_MEMORY}; exec "$@"', "sh", *start, "adhoc", "all"]
        command += ["-m", "ansible.builtin.script", "-a", json.dumps(script), "-t", f"{folder}/found"]
        for source in how.inventory or (f"{folder}/inventory.yml",):
            command += ["-i", source]
        command += ["--limit", f"@{folder}/limit", "-e", f"@{folder}/extra.yml", "-f", str(how.forks)]
        command += ["-T", str(math.ceil(how.connect_timeout)), "--task-timeout", str(math.ceil(how.timeout))]
        command += ["-b"] if how.become else []
        for path in how.vault_password_files:
            command += ["--vault-password-file", str(path)]
        if how.accept_new:
            command += ["--ssh-extra-args", "-o StrictHostKeyChecking=accept-new"]
        rounds = math.ceil(len(pairs) / how.forks)
        process = subprocess.Popen(
            command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        )  # fmt: skip
        with process, deadline.closes(process.terminate):
            try:
                printed = process.communicate(timeout=60 + rounds * (how.timeout + how.connect_timeout))[0]
            except subprocess.TimeoutExpired:
                process.kill()
                printed = "Ansible did not end in time"
        return [_answer(target, folder / "found" / target.name, printed) for target, _ in pairs]


def _answer(target: Target, file: Path, printed: str) -> Ran:
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        result = None
    if not isinstance(result, dict):
        result = {"msg": " ".join(printed.split())[-600:]}
    rc, outputs = result.get("rc"), [result.get(name) for name in ("stdout", "stderr")]
    if isinstance(rc, int) and all(isinstance(one, str) for one in outputs):
        stdout, stderr = (target.hidden(str(one)) for one in outputs)
        return Ran(target=target, rc=rc, stdout=stdout, stderr=stderr)
    error = UnreachableError(
        f"{target.name}: Ansible (connection {target.connection}) could not run a script there: {result.get('msg')}",
        fix=f"try: ansible {target.name} -i INVENTORY -m gpunode.node.facts -vvv",
    )
    return Ran(target=target, error=target.hidden_in(error))
