"""An Ansible inventory, read by Ansible's own classes: hosts, how to reach them, and their `gpunode_spec`."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.grammar import HOST
from gpunode.core.late import dataclass, field
from gpunode.core.meant import meant
from gpunode.core.printable import shortened
from gpunode.core.secrets import Vaulted
from gpunode.core.spec import merge_spec
from gpunode.core.spec.flat import clashes, flat_spec, flat_variables, misspelt
from gpunode.edge.load import meant_file
from gpunode.edge.programs import use_installed_locale
from gpunode.edge.ssh.shell import Target, check_target

LOG = logging.getLogger("gpunode")
SPEC_VARIABLE = "gpunode_spec"
_VAULT = b"$ANSIBLE_VAULT"
_ONE_FILE = "name the file that is one, such as -i FOLDER/hosts.yml"
_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh")


@dataclass(frozen=True, kw_only=True)
class InventoryHost:
    """A host of the inventory.  `spec` is its gpunode_spec as plain data, merged key by key over groups and host.

    Texts that came out of a vault are `Vaulted` in it.
    """

    target: Target
    groups: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.target.name


def load_inventory(
    sources: Sequence[str], *, limit: str = "", vault_password_files: Sequence[str] = ()
) -> tuple[InventoryHost, ...]:
    """The hosts of the inventory sources (as for `ansible -i`), in the inventory's order, cut down by `limit`.

    Variables are templated, and vaults opened, by Ansible; ansible.cfg is honoured.  Raises InputError.
    """
    for source in sources:
        if source.endswith(",") and Path(source.rstrip(",")).exists():
            raise InputError(
                f"{source} is a list of hosts, by its comma", fix=f"drop the comma: -i {source.rstrip(',')}"
            )
        if not source or ("," not in source and not Path(source).exists()):
            raise InputError(
                f"inventory {source or repr(source)} does not exist",
                expected="a file, a folder, or 'host1,host2,' with a comma",
                fix=meant_file(source, "check the path"),
            )
    _import_ansible()
    from ansible.errors import AnsibleError

    try:
        return _load(sources, limit, vault_password_files)
    except AnsibleError as error:
        broken = Path(str(error).rpartition(" ")[2])  # a file of a folder, perhaps
        inside = next((source for source in sources if Path(source).absolute() in broken.parents), "")
        raise (
            _mistake([*sources, str(broken)])
            or (inside and InputError(f"{broken.name} of the folder {inside} is no inventory", fix=_ONE_FILE))
            or InputError(
                f"{_origin_of(error) or ' '.join(('inventory', *sources))}: {error}",
                fix="ansible-inventory --list shows more",
            )
        ) from error


def _origin(value: Any) -> str:
    """FILE:LINE:COLUMN of a value of Ansible's; "" where it has none."""
    from ansible._internal._datatag._tags import Origin

    return str(value if isinstance(value, Origin) else Origin.get_tag(value) or "")


def _origin_of(error: BaseException | None) -> str:
    """The place of what Ansible could not read: its own error has it, and not the one that it raises in its place."""
    place = ""
    while error is not None and not place:
        place, error = _origin(getattr(error, "obj", None)), error.__cause__ or error.__context__
    return place


def _mistake(sources: Sequence[str]) -> InputError | None:
    """What is wrong with the first of the sources that is broken, with line and column, where that can be said."""
    from gpunode.edge.load import inventory_mistake

    return next(filter(None, map(inventory_mistake, sources)), None)


def inventory_vars(target: Target) -> dict[str, Any]:
    """The Ansible variables that reach the target: for an inventory made of hosts named on the command line."""
    found: dict[str, Any] = {"ansible_host": target.address or target.name, "ansible_connection": target.connection}
    found |= {"ansible_port": target.port} if target.port else {}
    found |= {"ansible_user": target.user} if target.user else {}
    found |= {"ansible_ssh_private_key_file": target.keys[0]} if target.keys else {}
    found |= {"ansible_ssh_common_args": shlex.join(target.ssh_args)} if target.ssh_args else {}
    found |= {"ansible_password": target.password} if target.password else {}
    if target.become:
        found |= {"ansible_become": True, "ansible_become_user": target.become_user}
        found |= {"ansible_become_password": target.become_password} if target.become_password else {}
    return found


def merged_spec(variable_manager: Any, host: Any, *, play: Any = None, task: Any = None) -> Any:
    """The untemplated `gpunode_spec` of a host of Ansible's, {} when there is none.

    Where several groups and the host set it, the values are merged key by key, in Ansible's order of precedence:
    Ansible's own merge (hash_behaviour), for this one variable, whatever ansible.cfg says for the others.
    """
    with _constant("DEFAULT_HASH_BEHAVIOUR", "merge"):
        variables = variable_manager.get_vars(host=host, play=play, task=task, include_hostvars=False)
    return variables.get(SPEC_VARIABLE, {})


def host_spec(templar: Any, merged: Any, variables: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """What an inventory says of a host, as plain data: flat variables win over `merged`, its untemplated gpunode_spec.

    The second value has a sentence for each that says something else there.  Raises InputError for what is no mapping.
    """
    spec = plain_spec(templar.template({} if merged is None else merged))
    if not isinstance(spec, dict):
        name = variables["inventory_hostname"]
        place, shown = _origin(merged), "" if isinstance(spec, Vaulted) else f": {shortened(spec)}"
        raise InputError(
            f"host {name}: {SPEC_VARIABLE} is no mapping{shown}{place and f', in {place}'}",
            expected="a mapping, as in gpunode.yml",
            fix=f"write `{SPEC_VARIABLE}:`, and below it each key on a line of its own",
        )
    given = {name: variables[name] for name in flat_variables() if name in variables}
    flat = plain_spec(templar.template(given))
    if not flat:
        return spec, []
    return merge_spec(spec, flat_spec(flat)), clashes(flat, spec)


# ---------------------------------------------------------------- Ansible


def _import_ansible() -> None:
    use_installed_locale()
    try:
        import ansible.cli  # noqa: F401  sets Ansible's controller side up, before anything else of it
    except SystemExit as error:  # it insists on UTF-8 and on blocking output
        raise InputError(str(error), fix="for the locale: export LC_ALL=C.UTF-8") from error


def _load(sources: Sequence[str], limit: str, vault_password_files: Sequence[str]) -> tuple[InventoryHost, ...]:
    from ansible.errors import AnsibleError
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.plugins.loader import init_plugin_loader
    from ansible.template import Templar
    from ansible.utils.collection_loader import AnsibleCollectionConfig
    from ansible.vars.hostvars import HostVars
    from ansible.vars.manager import VariableManager

    if AnsibleCollectionConfig.collection_finder is None:
        init_plugin_loader()
    loader = DataLoader()
    _open_vaults(loader, vault_password_files)
    # a bare `hosts.yml` would lose the group_vars and host_vars beside it: Ansible looks for them in its folder, ""
    paths = [source if "," in source else str(Path(source).absolute()) for source in sources]
    with _constant("INVENTORY_ANY_UNPARSED_IS_FAILED", True):  # a broken file is an error, not a warning
        try:
            inventory = InventoryManager(loader=loader, sources=paths)
        except (AnsibleError, KeyboardInterrupt):
            raise
        except Exception as error:  # some names and forms end in a plain one, or in a RecursionError
            raise InputError(
                f"inventory {' '.join(sources)}: Ansible cannot read it: {error!s:.200}",
                fix="ansible-inventory --list shows more",
            ) from error
    variable_manager = VariableManager(loader=loader, inventory=inventory)
    variable_manager.safe_basedir = False  # group_vars in the current folder are not the inventory's
    HostVars(inventory=inventory, variable_manager=variable_manager, loader=loader)  # makes `hostvars` known
    unknown = _unknown(inventory, limit)
    inventory.subset(limit or None)
    found = []
    for host in [] if unknown else inventory.get_hosts():
        variables = variable_manager.get_vars(host=host)
        try:
            templar = Templar(loader=loader, variables=variables)
            target = check_target(_target(host.name, variables, templar))
            given = merged_spec(variable_manager, host) if SPEC_VARIABLE in variables else {}
            spec, clashing = host_spec(templar, given, variables)
        except AnsibleError as error:
            raise InputError(f"host {host.name}: {error}", fix="correct the variable in the inventory") from error
        for sentence in [*clashing, *misspelt(variables, _of_connections())]:
            LOG.warning("%s: %s", host.name, sentence)
        groups = tuple(group.name for group in host.get_groups() if group.name not in ("all", "ungrouped"))
        found.append(InventoryHost(target=target, groups=groups, spec=spec))
    if not found:
        known = ", ".join(sorted(inventory.hosts)[:10])
        if not known and (mistake := _mistake(sources)):
            raise mistake
        raise InputError(
            f"no host of inventory {' '.join(sources)} matches" + (f" --limit {unknown or limit}" if limit else ""),
            expected=f"one of: {known}, …" if known else "an inventory with hosts",
            fix=meant(
                unknown or limit,
                [*inventory.groups, *inventory.hosts],
                "ansible-inventory --graph shows hosts and groups",
            ),
        )
    return tuple(found)


def _unknown(inventory: Any, limit: str) -> str:
    """A plain name of the limit that is neither a host nor a group; Ansible passes over it, and changes the others."""
    from ansible.inventory.manager import split_host_pattern

    for name in (pattern.strip().lstrip("!&") for pattern in split_host_pattern(limit)):
        if name.startswith("@") and not Path(name[1:]).is_file():
            raise InputError(f"--limit {name}: there is no file {name[1:]}", fix=meant_file(name[1:], "check the path"))
        if HOST.fits(name) and name not in inventory.groups and name not in inventory.hosts:
            return str(name)
    return ""


def _open_vaults(loader: Any, vault_password_files: Sequence[str]) -> None:
    """Give the loader the vault passwords: of these files, and of ansible.cfg and the environment."""
    from ansible.cli import CLI
    from ansible.parsing.vault import VaultSecretsContext

    files = [str(path) for path in vault_password_files]
    secrets = CLI.setup_vault_secrets(
        loader, [], vault_password_files=files, auto_prompt=False, initialize_context=False
    )
    loader.set_vault_secrets(secrets)
    # values that are encrypted one by one are opened with what this holds; a process has one, set once
    context = VaultSecretsContext.current(optional=True)
    if context is None:
        VaultSecretsContext.initialize(VaultSecretsContext(secrets))
    else:
        context.secrets = secrets


def _target(name: str, variables: Mapping[str, Any], templar: Any) -> Target:
    """What the connection plugin ssh and the become plugin sudo would do for the host, by Ansible's own rules."""
    from ansible import constants as C
    from ansible.module_utils.parsing.convert_bool import boolean

    def value(variable: str, default: Any) -> Any:
        return templar.template(variables[variable]) if variable in variables else default

    def options(kind: str, plugin: str) -> dict[str, Any]:
        """All options of the plugin from variables, environment and ansible.cfg."""
        _load_plugin(kind, plugin)
        names = [n for n in C.config.get_plugin_vars(kind, plugin) if n in variables]
        given = {n: templar.template(variables[n]) for n in names}
        found: dict[str, Any] = C.config.get_plugin_options(kind, plugin, variables=given)
        return found

    def text(given: Any) -> str:
        return "" if given is None else str(_plain(given))

    connection = text(value("ansible_connection", C.DEFAULT_TRANSPORT)).removeprefix("ansible.builtin.")
    become = boolean(value("ansible_become", C.DEFAULT_BECOME))
    method = text(value("ansible_become_method", C.DEFAULT_BECOME_METHOD)).removeprefix("ansible.builtin.")
    sudo = options("become", "sudo")
    ssh = options("connection", "ssh")
    connection = "ssh" if connection in _SSH else connection
    special = [key for key in ("private_key", "private_key_passphrase", "pkcs11_provider") if ssh.get(key)]
    special += ["ssh_executable"] if ssh["ssh_executable"] != "ssh" else []
    if connection == "ssh" and special:
        connection = f"ssh with {special[0]}"
    if become and (method != "sudo" or sudo["become_exe"] != "sudo" or sudo["become_flags"] != "-H -S -n"):
        connection = f"{connection}, become by {method}"
    return Target(
        name=name,
        address=text(ssh["host"]),
        port=int(ssh["port"]) if ssh["port"] else None,
        user=text(ssh["remote_user"]),
        keys=(str(Path(text(ssh["private_key_file"])).expanduser()),) if ssh["private_key_file"] else (),
        password=text(ssh["password"]),
        ssh_args=tuple(
            arg for key in ("ssh_args", "ssh_common_args", "ssh_extra_args") for arg in shlex.split(text(ssh[key]))
        ),
        connection=connection,
        check_host_key=bool(ssh["host_key_checking"]),
        become=become,
        become_user=text(sudo["become_user"]) or "root",
        become_password=text(sudo["become_pass"]),
    )


@cache
def _of_connections() -> frozenset[str]:
    """The variables that say how a host is reached."""
    from ansible import constants as C

    found = {name for kind in (("connection", "ssh"), ("become", "sudo")) for name in C.config.get_plugin_vars(*kind)}
    found |= {f"ansible_{method}_{word}" for method in ("su", "ksu") for word in ("user", "pass", "exe", "flags")}
    return frozenset({*found, *C.COMMON_CONNECTION_VARS, "ansible_become", "ansible_become_method"})


def _load_plugin(kind: str, name: str) -> None:
    """Make Ansible read the plugin's documentation: its options are known only then."""
    from ansible.plugins.loader import become_loader, connection_loader

    {"become": become_loader, "connection": connection_loader}[kind].get(name, class_only=True)


def plain_spec(value: Any) -> Any:
    """A templated `gpunode_spec` as plain data; its texts out of a vault become `Vaulted`."""

    def marked(plain: Any, tagged: Any) -> Any:
        if isinstance(plain, dict) and isinstance(tagged, Mapping):
            return {key: marked(plain[key], inner) for key, inner in zip(plain, tagged.values(), strict=True)}
        if isinstance(plain, list) and isinstance(tagged, Sequence):
            return [marked(*pair) for pair in zip(plain, tagged, strict=True)]
        return Vaulted(plain) if isinstance(plain, str) and _from_vault(tagged) else plain

    return marked(_plain(value), value)


def _from_vault(value: Any) -> bool:
    """Whether Ansible decrypted the value by itself, or the file that it is from."""
    from ansible._internal._datatag._tags import Origin
    from ansible.parsing.vault import VaultHelper

    origin = Origin.get_tag(value)
    path = origin.path if origin else None
    return bool(VaultHelper.get_ciphertext(value, with_tags=False)) or bool(path and _is_vault(path))


@cache
def _is_vault(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_VAULT)) == _VAULT
    except OSError:
        return False


def _plain(value: Any) -> Any:
    """Ansible's tagged values as plain ones: what YAML could have said."""
    try:
        return json.loads(json.dumps(value, default=str))
    except (TypeError, ValueError) as error:
        raise InputError(f"a value of the inventory is not plain data: {error}") from error


@contextlib.contextmanager
def _constant(name: str, value: Any) -> Iterator[None]:
    """One of Ansible's settings changed for a while: it has no other door for a caller from Python."""
    from ansible import constants as C

    before = getattr(C, name)
    setattr(C, name, value)
    try:
        yield
    finally:
        setattr(C, name, before)
