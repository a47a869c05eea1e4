# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What the action plugins share: run a node script through Ansible's connection, and turn its outcome into a result."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar

from ansible.errors import AnsibleConnectionFailure
from ansible.inventory.helpers import get_group_vars
from ansible.plugins.action import ActionBase
from ansible.release import __version__ as ansible_version
from ansible.utils.display import Display

VERSION = "0.1.0"
Result = dict[str, Any]
Request = dict[str, bytes]

if TYPE_CHECKING:
    from gpunode.core.edits.target import EditTarget
    from gpunode.core.model import ConfigFile, Edit, NodeFacts, Outcome
    from gpunode.core.secrets import Secrets

try:
    from gpunode import __version__
    from gpunode.core.errors import Exit, GpunodeError, InputError, RefusedError
    from gpunode.core.facts import parse_probe
    from gpunode.core.late import regex
    from gpunode.core.mask import mask
    from gpunode.core.printable import with_texts
    from gpunode.core.remote import CALL, FOLLOWS, STARTED, as_lines, fix_of, parse_outcome, program
    from gpunode.edge.share import data_limit, share
    from gpunode.node import script
except ImportError as error:
    GPUNODE_MISSING = str(error)
else:
    GPUNODE_MISSING = ""
    RUN = regex(r"[0-9A-Za-z]+-[0-9a-f]+")  # a run's name

LOG_TAIL = 40
MOST_MEMORY = 96 << 20  # bytes in which an answer of at most 16 MiB is read
HEARTBEAT = 60  # seconds
RECONNECT = 120  # seconds for a connection that broke while a script ran
KEYS = {  # what options of the command line are called in a play
    "config": "gpunode_config",
    "manifest": "manifest",
    "server-version": "server_version",
    "timeout": "gpunode_timeout",
    "unit": "unit",
}
NO_TTY = ("must have a tty", "no tty present")
READ = ("probe.sh", "read_journal.sh")
LEAST_ANSIBLE = (2, 19)
DONE = "gpunode_done_"  # what the tasks of the roles register
OURS = "gpunode.node."  # before the names of our roles
OWN = ("gpunode_plan", "gpunode_result", "gpunode_expect", "gpunode_values")  # variables that nobody else sets


def is_ours(role: Any) -> bool:
    """Whether it is a role of this collection."""
    return bool(role) and role.get_name().startswith(OURS)


class NodeAction(ActionBase):
    """An action whose work is `act(args) -> result`; no module and no Python is used on the node."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = True
    _supports_async = False
    ARGUMENTS: ClassVar[dict[str, Any]] = {}
    _opened: Secrets | None = None  # the secrets that the arguments refer to
    _lifted: Any = contextlib.nullcontext  # of the host's share, while the host is waited for
    _read_for = 0.0  # seconds that the step has read

    def run(self, tmp: str | None = None, task_vars: Result | None = None) -> Result:
        result: Result = super().run(tmp, task_vars)
        if misfit := _misfit():
            return result | misfit
        args = self.validate_argument_spec(argument_spec=self.ARGUMENTS)[1]
        self._vars = task_vars or {}
        try:
            self._refuse_facts()
            self._refuse_others()
            with share() as self._lifted:
                done = self.act(self._with_secrets(args))
            if not done:
                return result | {"changed": False, "skipped": True, "skip_reason": "nothing to do"}
            return result | {"changed": False} | self._shown(self._with_log_file(self._sealed(done)))
        except ImportError as error:
            return result | _needs_gpunode(error)
        except GpunodeError as error:
            failed = {"failed": True, "msg": str(error), "fix": error.fix, "gpunode_exit": int(error.exit)}
            return result | self._sealed(failed if self._vars.get("gpunode_run") else in_ansibles_words(failed))

    def act(self, args: Result) -> Result:
        """The result of the task; an empty one where there is nothing to do, which skips the task."""
        raise NotImplementedError

    def _shown(self, result: Result) -> Result:
        """With --diff, what is no file shows its changes as a diff, too; gpunode itself lists them."""
        if not self._task.diff or result.get("diff") or not result.get("changes") or self._vars.get("gpunode_run"):
            return result
        return result | {"diff": [{"prepared": "".join(f"{one['text']}\n" for one in result["changes"])}]}

    def _with_log_file(self, result: Result) -> Result:
        """A failure's whole log goes into the run's folder on the controller, if this is a run of gpunode's.

        The result has the path, and the end of the log.
        """
        log, undone = result.get("log") or [], result.get("rollback") or []
        shown = {key: value for key, value in result.items() if key != "rollback"}
        if not result.get("failed") or not log:
            return shown
        shown["log"] = log[-LOG_TAIL:]
        path = self._write_log([*log, *(["--- rollback ---", *undone] if undone else [])])
        if not path:
            return shown
        return shown | {"log_file": path, "msg": f"{shown.get('msg', '')} (log: {path})"}

    def _write_log(self, lines: Iterable[str]) -> str:
        """The file with these lines, "" where there is no folder of the run or it cannot be written."""
        from gpunode.edge.state import state_path, write_private

        run = str(self._vars.get("gpunode_run") or "")
        folder = state_path() / "runs" / run
        if not RUN.fullmatch(run) or not folder.is_dir():
            return ""
        host = str(self._vars.get("inventory_hostname")).replace("/", "_")
        path = folder / "hosts" / f"{host}.{self._task.action.rpartition('.')[2]}.log"
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(path, "".join(f"{line}\n" for line in lines))
        except OSError:  # a full disk: the end of the log is in the result
            return ""
        return str(path)

    @property
    def check(self) -> bool:
        return bool(self._task.check_mode)

    def _refuse_facts(self) -> None:
        """No node decides what is done on it: its facts (of modules, of a cache) override an inventory's variables."""
        given = [name for name in self._vars.get("ansible_facts") or {} if name.startswith("gpunode_")]
        if given:
            raise RefusedError(
                f"{given[0]} is a fact of this host",
                expected="a variable of the inventory or of the play: no host decides what is done on it",
                fix="look for the module or the fact cache that it came from; set_fact must not be cacheable",
            )

    def _refuse_others(self) -> None:
        """A plan, and what a generated play has in its inventory, are refused where another has set the variable."""
        manager = self._task.get_variable_manager()
        for name in manager.extra_vars:
            if name in OWN or name.startswith(DONE):
                raise _not_ours(name, "-e")
        plan, role = self._vars.get("gpunode_plan"), self._task._role
        given = [name for name in manager.extra_vars if name.startswith("gpunode_")]
        if given and not self._vars.get("gpunode_run") and not self.own_plan(plan):  # the first task has looked
            from gpunode.core.spec.flat import misspelt

            if wrong := misspelt(given):
                raise InputError(wrong[0], fix="correct it behind -e; nothing was done")
        default = role.get_default_vars().get("gpunode_plan") if role else None
        name, made = self._vars["inventory_hostname"], plan.get("plan") if isinstance(plan, dict) else None
        if isinstance(made, dict) and made.get("host") not in (None, name):
            raise RefusedError(
                f"gpunode_plan is the plan of {made['host']}, and this host is {name}",
                expected="a plan of each host's own",
                fix="remove run_once, by which Ansible gives one host's results to all",
            )
        ended = isinstance(plan, dict) and (plan.get("failed") or plan.get("unreachable"))  # and the play went on
        if self.of_gpunode and not ended and plan is not None and plan != default and not self.own_plan(plan):
            raise _not_ours("gpunode_plan", "set_fact, register or a variable")
        host = manager._inventory.get_host(name)
        groups = [group for group in host.get_groups() if group.name.startswith("gpunode_")]  # of a generated play
        for name, ours in (("gpunode_expect", host.get_vars()), ("gpunode_values", get_group_vars(groups))):
            if name in self._vars and self._vars[name] != ours.get(name):
                raise _not_ours(name, "set_fact, register or a variable")

    @property
    def of_gpunode(self) -> bool:
        """Whether a role of this collection runs the task."""
        return is_ours(self._task._role)

    def own_plan(self, plan: Any) -> Result:
        """The result of gpunode.node.plan for this host, {} where it is none or somebody has changed it."""
        if not isinstance(plan, dict) or "digest" not in plan:
            return {}
        return plan if plan["digest"] == self.digest(plan) else {}

    def digest(self, plan: Result) -> str:
        """What tells a plan from another one."""
        host, values = self._vars["inventory_hostname"], [plan.get(key) for key in ("variables", "smoke", "asked")]
        return sha256(json.dumps([host, values], sort_keys=True, default=str).encode()).hexdigest()

    def inventory_spec(self) -> Result:
        """gpunode_spec of all groups and the host, merged key by key; Ansible itself would take the last one whole.

        Flat variables, such as gpunode_driver_branch, win over it.  What a person wrote is templated; texts that are
        results of tasks Ansible never templates.
        """
        from gpunode.edge.ansible.inventory import host_spec, merged_spec

        manager = self._task.get_variable_manager()
        host = manager._inventory.get_host(self._vars["inventory_hostname"])
        merged = merged_spec(manager, host, play=self._task.play, task=self._task)
        spec, self.clashes = host_spec(self._templar, merged, self._vars)
        return spec

    def whole_spec(self, config: str) -> Result:
        """That gpunode.yml, if any, and the inventory's over it."""
        from gpunode.core.spec import merge_spec
        from gpunode.edge.load import load_spec_data

        return merge_spec(load_spec_data(config) if config else {}, self.inventory_spec())

    def secrets(self) -> Secrets:
        """The secrets of this host's spec: gpunode.yml's that `gpunode provision` hands over, the inventory's."""
        from gpunode.core.secrets import seal_spec
        from gpunode.edge.secrets import VARIABLE, received

        spec = self.whole_spec(self._templar.template(self._vars.get("gpunode_config") or ""))
        return received(self._vars.get(VARIABLE, "")) | seal_spec(spec, where="gpunode_spec")[1]

    def _with_secrets(self, args: Result) -> Result:
        """The arguments with secrets in place of references: only here, only for the request to the node."""
        from gpunode.core.secrets import is_recorded

        if not is_recorded(args):
            return args
        self._opened = self.secrets()
        return self._opened.open_data(args)

    def _sealed(self, result: Any) -> Any:
        """A result, which callbacks and logs see, without the secrets of the arguments."""
        return with_texts(result, self._opened.seal) if self._opened else result

    def probe(self, *sections: str, paths: Iterable[str] = ()) -> tuple[str, NodeFacts]:
        """(probe text, facts); all sections when none is named, none when files are (paths and globs)."""
        request = {"sections": " ".join(sections).encode() + b"\n"} if sections or paths else {}
        if paths:
            request["paths"] = as_lines(sorted(paths))
        text, _rc = self.send("probe.sh", request)
        return text, parse_probe(text, of_node=not request)

    def node(self, name: str, request: Request) -> tuple[Outcome, str]:
        """Outcome of node script `name`, with what the script itself printed."""
        call = {} if self.check else {CALL: f"{token_hex(8)}\n".encode()}
        stdout, rc = self.send(name, request | self._signature() | call)
        return parse_outcome(stdout, rc), stdout

    def result(self, name: str, request: Request) -> Result:
        """The outcome of node script `name`, as Ansible's result."""
        return result_of(self.node(name, request)[0])

    def result_or_not_yet(self, outcome: Outcome, then: str) -> Result:
        """The outcome as Ansible's result; in check mode, what the script needs may only come with earlier steps."""
        if self.check and outcome.code == "not-yet":
            return not_yet(f"{outcome.message} yet; {then}")
        return result_of(outcome)

    def again(self, attempt: Callable[..., Result], *args: Any) -> Result:
        """One edit; read and made again when somebody else wrote the same files in between."""
        from gpunode.core.edits.commit import TRIES

        for _try in range(TRIES):
            result = attempt(*args)
            if not result.get("stale"):
                break
        return result

    def commit(
        self,
        target: EditTarget,
        edit: Edit,
        seen: Mapping[str, ConfigFile | None],
        used: Sequence[str] | None = None,
        more: Request | None = None,
    ) -> Result:
        """The result of an edit in one transaction; `used` are the records that an undo uses up."""
        from gpunode.core.edits.commit import settling_of, target_request
        from gpunode.core.edits.target import texts

        if edit.problems:
            raise RefusedError.of(edit.problems)
        if not edit.changes:
            msg = f"{target.name} is configured" if used is None else f"{target.name}: nothing to undo"
            return {"changed": False, "msg": msg}
        after = target.activation(texts(seen), edit)
        request = target_request(target, edit, seen, after, used=used, check=self.check)
        outcome, text = self.node("commit.sh", request | (more or {}))
        result = result_of(outcome) | {"diff": self.diff(edit.changes, seen), "stale": list(outcome.stale)}
        found = settling_of(text)
        return result | ({"settling": found} if found else {})

    def diff(self, changes: Mapping[str, bytes | None], files: Mapping[str, ConfigFile | None]) -> list[Result]:
        """Masked unified diffs of what changes, with --diff."""
        from gpunode.core.diff import unified

        if not self._task.diff:
            return []
        before = {path: file.data if (file := files.get(path)) else None for path in changes}
        found = [unified(before[path], data, path) for path, data in changes.items()]
        return [{"prepared": text} for text in found if text]

    def _signature(self) -> Request:
        """Who the lines in the node's journal are from: the run (gpunode_run of a play) and the role at work."""
        from gpunode.core.remote import signature

        return signature(
            run=str(self._vars.get("gpunode_run", "")),
            part=self._part(),
            controller=str(self._vars.get("gpunode_controller", "")),
            generation=str(self._vars.get("gpunode_generation", "")),
            break_lock=str(self._vars.get("gpunode_break_lock", "")) == "1",
        )

    def _part(self) -> str:
        """The role at work, of the role plan the file of its tasks; in a generated play, which has no role, the tag."""
        if self._task._role:
            name = self._task._role.get_name().rpartition(".")[2]
            return Path(self._task.get_path()).name.partition(".")[0] if name == "plan" else name
        tags = (str(tag) for tag in self._task.tags)
        return next((tag.removeprefix("gpunode_") for tag in tags if tag.startswith("gpunode_")), "")

    def recovered(self) -> Result:
        """What an interrupted run left on the node, finished or undone."""
        from gpunode.core.edits.commit import commit_request
        from gpunode.core.items.package import packages_request
        from gpunode.core.items.runfile import runfile_request

        requests = {"commit.sh": commit_request(), "packages.sh": packages_request({})}
        result: Result = {}
        for name, request in (requests | {"runfile.sh": runfile_request("recover")}).items():
            if not result.get("failed"):
                done = self.result(name, request | ({"check": b"1\n"} if self.check else {}))
                result = combined_results(result, done)
        return result

    def send(self, name: str, request: Request, *, changes: bool = True) -> tuple[str, int]:
        """(standard output, exit status) of node script `name`."""
        text = program(script(name), request)
        with self._lifted(), self._heartbeat(), self._in_time(name, changes=changes), self._bounded(name):
            try:
                done = self._execute(text)
            except AnsibleConnectionFailure as error:
                if CALL not in request or STARTED not in str(error):
                    raise
                done = self._follow(request[CALL])
        if not done["stdout"] and done["rc"]:
            why = (done["stderr"] or done.get("msg", "")).strip()[-500:]
            raise GpunodeError(
                f"{name} could not be run: {why} (status {done['rc']})",
                fix=fix_of(why),
            )
        return done["stdout"] + (f"\n{done['stderr']}" if done["stderr"].strip() else ""), done["rc"]

    @contextlib.contextmanager
    def _in_time(self, name: str, *, changes: bool) -> Iterator[None]:
        """Within, script `name` may run; all that a step reads has one time together."""
        from gpunode.edge.ansible.step_limit import CHANGING, LOOKING, READING, time_limit

        if name not in READ:
            looks = self.check or name == "smoke.sh" or not changes
            with time_limit(name, LOOKING if looks else CHANGING):
                yield
            return
        given = self._templar.template(self._vars.get("gpunode_timeout") or READING)
        if not re.fullmatch(r"\d+(\.\d+)?", str(given)):
            raise InputError(f"gpunode_timeout is {given!r}", expected="a number of seconds", fix="write 120, or more")
        began = time.monotonic()
        with time_limit(name, float(given), spent=self._read_for):
            yield
        self._read_for += time.monotonic() - began

    def _heartbeat(self) -> contextlib.AbstractContextManager[None]:
        """Says once a minute that a task still runs: a package step takes many, and prints nothing until its end."""
        from gpunode.edge.side_by_side import beating

        what = f"{self._vars.get('inventory_hostname')}: {self._task.name or self._task.action}"
        started = time.monotonic()
        return beating(lambda: f"{what}: running for {(time.monotonic() - started) / 60:.0f} min", HEARTBEAT, say)

    @contextlib.contextmanager
    def _bounded(self, name: str) -> Iterator[None]:
        """Ansible keeps all that a node prints: one that never stops fails its task instead of filling the controller.

        On this machine itself nothing is bounded, since what runs here would have the bound, too.
        """
        if self._connection.transport == "local":
            yield
            return
        before = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, data_limit(MOST_MEMORY))
        try:
            yield
        except MemoryError:
            raise GpunodeError(
                f"{name} printed more than any node has to say, and was left",
                fix="look at what runs on this host: its shell or its ssh server prints without end",
            ) from None
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)

    def _pipes(self) -> bool:
        """Whether connection and become both take data on standard input (su and paramiko do not)."""
        become = self._connection.become
        if not self._connection.has_pipelining or (become and not become.pipelining):
            return False
        # the local connection gives a pty to a become plugin that asks for a password
        return not (self._connection.transport == "local" and become and become.expect_prompt())

    def _execute(self, text: str) -> Result:
        done = None
        if self._pipes():
            done = self._low_level_execute_command("/bin/sh -s", in_data=text.encode())
        if done is None or (done["rc"] and any(words in done["stderr"] for words in NO_TTY)):
            done = self._from_file(text)
        return done | {"stderr": done["stderr"].replace(f"{STARTED}\n", "")}

    def _follow(self, call: bytes) -> Result:
        """What a script prints that runs on a node to which the connection broke; that is made again and again."""
        say(f"{self._vars.get('inventory_hostname')}: the connection broke: waiting for what runs there")
        until = time.monotonic() + RECONNECT
        while True:
            try:
                return self._execute(program(script("follow.sh"), {FOLLOWS: call}))
            except AnsibleConnectionFailure as error:
                if STARTED in str(error):
                    until = time.monotonic() + RECONNECT
                elif time.monotonic() > until:
                    why = "the script that ran there may still do so: the next run waits for it"
                    raise AnsibleConnectionFailure(
                        f"the connection broke, and does not come back ({why}): {error}"
                    ) from error
                time.sleep(2)

    def _from_file(self, text: str) -> Result:
        """By a 0600 file in the remote temporary folder, which is removed again."""
        folder = self._make_tmp_path()
        try:
            path = self._connection._shell.join_path(folder, "gpunode")
            self._transfer_data(path, text)
            self._remote_chmod([path], "u=rw,go=")
            self._fixup_perms2([folder, path], execute=False)
            return self._low_level_execute_command(f"/bin/sh {shlex.quote(path)}")
        finally:
            self._remove_tmp_path(folder)


def _misfit() -> Result:
    """The failure where Ansible or the Python package is none that this collection works with; {} where both are."""
    if tuple(int(part) for part in ansible_version.split(".")[:2]) < LEAST_ANSIBLE:
        least = ".".join(map(str, LEAST_ANSIBLE))
        msg = f"collection gpunode.node needs ansible-core {least} or newer; this is {ansible_version} of {sys.prefix}"
        fix = "install gpunode, which brings ansible-core, into an environment of its own (python3 -m venv, pipx)"
    elif GPUNODE_MISSING:
        return _needs_gpunode(GPUNODE_MISSING)
    elif __version__ != VERSION:
        msg = f"collection gpunode.node {VERSION} does not work with the installed Python package gpunode {__version__}"
        fix = (
            "use the collection that the package brings (remove the one that ansible-galaxy installed), or install "
            "both in one version"
        )
    else:
        return {}
    return {"failed": True, "msg": msg, "fix": fix}


def say(line: str) -> None:
    """A line for who watches: standard output belongs to callbacks, whose reader may be a program."""
    Display().display(line, stderr=True)


def _not_ours(name: str, how: str) -> RefusedError:
    return RefusedError(
        f"{name} is not what gpunode.node.plan found: it is set by {how}",
        expected="a name that no play, inventory or command line uses: the plan of a host is handed over by it",
        fix=f"give your own variable {name} another name",
    )


def _needs_gpunode(error: object) -> Result:
    needs = f"this collection needs the Python package gpunode on the controller: pip install gpunode=={VERSION}"
    fix = "in an environment of its own where another program pins ansible-core (kubespray does)"
    return {"failed": True, "msg": f"{needs} ({error})", "fix": fix}


def in_ansibles_words(failed: Result) -> Result:
    """A failure whose texts name the key where they name an option of the command line."""
    option = regex(rf"(?:-\w, )?--({'|'.join(KEYS)})(?![\w-])(?: PATH)?")
    texts = {key: option.sub(lambda match: KEYS[match[1]], failed[key]) for key in ("msg", "fix")}
    return failed | texts


def result_of(outcome: Outcome) -> Result:
    """An outcome as Ansible's result: `changes` with kind, name, text and versions; a failure has `msg`, `fix`, log."""
    result = {
        "changed": outcome.status == "changed",
        "msg": mask(outcome.message),
        "changes": [{key: mask(value) for key, value in asdict(one).items() if value} for one in outcome.changed],
        "notes": [mask(line) for line in outcome.notes],
    }
    if outcome.status in ("unchanged", "changed"):
        return result
    return result | {
        "failed": True,
        "changed": False,
        "fix": outcome.fix,
        "status": outcome.status,
        "gpunode_exit": int(Exit.REFUSED if outcome.status == "refused" else Exit.FAILED),
        "log": mask(outcome.log).splitlines(),
        "rollback": mask(outcome.rollback).splitlines(),
    }


def not_yet(text: str) -> Result:
    """The result of check mode where an earlier step brings what the script needs."""
    return {"changed": True, "msg": text, "changes": [{"text": text}]}


def combined_results(first: Result, second: Result) -> Result:
    """Two results as one: changed when either is, lists one after the other."""
    both = first | second
    both["changed"] = bool(first.get("changed") or second.get("changed")) and not both.get("failed")
    for key in ("changes", "notes", "diff"):
        both[key] = [*first.get(key, []), *second.get(key, [])]
    if warnings := [*first.get("warnings", []), *second.get("warnings", [])]:
        both["warnings"] = warnings
    both["msg"] = "; ".join(dict.fromkeys(text for text in (first.get("msg"), second.get("msg")) if text))
    return both
