"""Secrets do not survive masking, and what is no secret does."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpunode.core.diff import unified
from gpunode.core.mask import HIDDEN, mask, mask_quoted, shown

SECRET = st.text(alphabet="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=12, max_size=40)
KEY = st.sampled_from(
    "auth password passwd token identitytoken identity_token registry_token secret client_secret api_key api-key "
    "access_key private_key secret_key credentials ansible_password ansible_become_pass PASSWORD DB_PASSWORD "
    "HTTP_AUTH_TOKEN passphrase clientSecret accessToken apiToken dockerAuth userPassword".split()
)
FORMS = (
    "{key} = {secret}\n",
    '{key} = "{secret}" # comment\n',
    "{key} = '{secret}'\n",
    '{key} = """\n{secret}\n"""\n',
    "{key}: {secret}\n",
    "{key}:   'a {secret}'\n",
    "  - {key}: {secret}\n",
    "{key}: |\n  x\n  {secret}\nnext: 1\n",
    "{key}: >-\n\n    {secret}\n",
    "{key}:\n- a\n- {secret}\n",
    "{key}:\n  sub: {secret}\n",
    '{{"{key}": "{secret}", "x": 1}}',
    '{{"{key}":\n  "{secret}"}}',
    '{{"{key}": ["a", "{secret}"]}}',
    '{{"{key}": {{"a": {{"b": "}}"}}, "c": "{secret}"}}, "x": 1}}',
    '{key} = [ "a", # ]\n  "{secret}" ]\n',
    "export {key}={secret}\n",
    "command --{key} {secret} --other\n",
    "command --{key}={secret}\n",
    '+  {key} = "x\\"{secret}"\n',
    "-{key}={secret}\n",
    "{key}:{secret}",
)


@given(KEY, SECRET, st.sampled_from(FORMS), st.text(max_size=20), st.text(max_size=20))
def test_no_secret_survives(key: str, secret: str, form: str, before: str, after: str) -> None:
    assume(secret not in before + after)
    text = before + "\n" + form.format(key=key, secret=secret) + after
    assert secret not in mask(text)


@given(SECRET)
def test_secrets_without_a_key_are_known_by_their_shape(secret: str) -> None:
    for text in (
        f"https://user:{secret}@host/path",
        f"http://{secret}@host",
        f"Authorization: Bearer {secret}",
        f"curl -H 'x: Basic {secret}'",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{secret}\n-----END OPENSSH PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{secret}",
        f"PGPASSWORD={secret} psql",
        f"curl -u me:{secret} https://host",
        f"curl --proxy-user=me:{secret} https://host",
        f"sshpass -p {secret} ssh host",
        f"docker login -u me -p{secret} registry",
        f"machine host login me password {secret}",
        f"https://account.blob.example/x?sv=1&sig={secret}",
        f"https://bucket.example/x?X-Amz-Signature={secret}&X-Amz-Date=1",
        f"nvapi-{secret}{secret}",
        f"hf_{secret}{secret}",
    ):
        assert secret not in mask(text)


@pytest.mark.parametrize(
    "text",
    [
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/certs.d"\n',
        "Signed-By: /usr/share/keyrings/nvidia.asc\n",
        "gpgkey=https://developer.download.nvidia.com/compute/cuda/repos/D42D0685.pub\n",
        '{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}',
        "author: somebody\nsecretName: x\n",
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\nabc\n-----END PGP PUBLIC KEY BLOCK-----\n",
        "https://host/path?x=1\n",
        'password = ""\n',
        "ssh -p 22 host; docker run -u 1000:1000 image; ps -u root",
        "password authentication failed for user me",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask(text) == text


@given(st.text())
def test_masking_twice_equals_masking_once(text: str) -> None:
    assert mask(mask(text)) == mask(text)


def test_a_diff_hides_secrets_in_context_and_changes() -> None:
    before = b'password = "hunter2"\na = 1\n'
    after = b'password = "hunter2"\na = 2\ntoken = "abc"\n'
    assert unified(before, after, "/etc/x") == (
        f'--- /etc/x\n+++ /etc/x\n@@ -1,2 +1,3 @@\n password = "{HIDDEN}"\n-a = 1\n+a = 2\n+token = "{HIDDEN}"\n'
    )


def test_a_new_and_a_removed_file_are_distinguished() -> None:
    assert unified(None, b"a\n", "/etc/x").startswith("--- /dev/null\n+++ /etc/x\n")
    assert unified(b"a\n", None, "/etc/x").startswith("--- /etc/x\n+++ /dev/null\n")
    assert unified(b"a\n", b"a\n", "/etc/x") == ""
    assert unified(None, b"", "/etc/x").endswith("\n@@ an empty file @@\n")


def test_a_difference_that_is_hidden_is_said_by_its_line() -> None:
    assert unified(b"a\ntoken=a\n", b"a\ntoken=b\n", "/etc/x").endswith(
        "a secret, or what stands behind one, in line 2 @@\n"
    )
    assert unified(b"token=a b\n", b"token=a c\n", "/etc/x").endswith("what stands behind one, in line 1 @@\n")
    assert "line ends" in unified(b"a\n", b"a\r\n", "/etc/x")
    assert "line ends" in unified(b"a\n", b"a", "/etc/x")


ONE_LINE = '{"labels":["token=abc","AUTH=x y"],"http":"--password abc","runtimes":{"a":{"path":"/a"}}}'


def test_the_change_shows_though_secrets_stand_before_it_on_the_line() -> None:
    after = ONE_LINE.replace('"/a"', '"/b"')
    shown = unified(ONE_LINE.encode(), after.encode(), "/etc/docker/daemon.json")
    assert '"/a"' in shown
    assert '"/b"' in shown
    assert "abc" not in shown
    assert "x y" not in shown


@given(KEY, SECRET, st.sampled_from(["=", ": ", " = ", '=\\"']), st.sampled_from(["", "--", "-e "]))
def test_a_secret_in_a_string_is_hidden_up_to_the_end_of_the_string(
    key: str, secret: str, sign: str, lead: str
) -> None:
    text = f'{{"a":["{lead}{key}{sign}{secret} {secret}"],"b":"kept"}}'
    assert secret not in mask(text)
    assert mask(text).endswith('"],"b":"kept"}')


# ---------------------------------------------------------------- what messages quote


@given(
    SECRET,
    st.sampled_from(["https://{}@h", "ssh://u:{}@h", "u:{}@h:3128", "tcp://u:a/{}@h", "token={}", "x --password {}"]),
)
def test_a_value_in_a_sentence_has_no_secret(secret: str, form: str) -> None:
    assert secret not in shown(form.format(secret))
    assert secret not in mask_quoted(f"hosts holds {form.format(secret)}, which is no host")
    assert secret not in mask_quoted(f"hosts holds {form.format(secret)!r}: which is no host")


@given(KEY, SECRET, st.booleans())
def test_no_value_below_a_key_that_names_a_secret_is_shown(key: str, secret: str, above: bool) -> None:
    names = (key, "name") if above else ("log-opts", f"splunk-{key}" if key.islower() else key)
    assert shown(secret, *names) == f'"{HIDDEN}"'
    assert shown(12345678, *names) == f'"{HIDDEN}"'


def test_values_that_are_no_secrets_are_shown() -> None:
    assert [shown(one, "log-opts", "max-size") for one in (5, "10m", True, None, [1], {})] == [
        "5",
        '"10m"',
        "true",
        "null",
        "a list",
        "an object",
    ]
    assert shown("x" * 80) == f'"{"x" * 58}…'
    assert mask_quoted("/etc/x:3:1: exec-opts is [a=b]") == "/etc/x:3:1: exec-opts is [a=b]"
