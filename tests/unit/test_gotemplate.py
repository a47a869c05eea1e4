"""Go templates of TOML: what stands in for actions, what may be edited, and back to the byte."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.core.edits.target import Refusal
from gpunode.core.edits.text import gotemplate

ACTIONS = st.sampled_from(
    [
        '{{ template "base" . }}',
        "{{- if .DisableCgroup}}\n  disable_cgroup = true\n{{else}}\n{{end}}",
        "{{/* a comment\nof two lines */}}",
        "# {{ .Program }}",
        'path = "{{ .A }}/x"',
        "SystemdCgroup = {{ .SystemdCgroup }}",
        "a = {{ if .X }}1{{ else }}2{{ end }} # why",
        '{{ if $v }}b = {{ printf "%q" $v }}{{end}}',
        'list = [{{range $i, $j := .E}}{{if $i}}, {{end}}{{printf "%q" .}}{{end}}]',
        '[x."{{$k}}"]',
        "[y]",
        "c = 1",
        "d = '{{ .Q }}'",
        "",
        "  # plain",
    ]
)


@given(st.lists(ACTIONS, max_size=12), st.sampled_from(["\n", "\r\n"]))
@settings(max_examples=300, deadline=None)
def test_a_template_that_is_not_edited_comes_back_to_the_byte(lines: list[str], newline: str) -> None:
    text = newline.join(lines)
    template = gotemplate.read(text)
    assert "{{" not in template.toml
    assert template.edited(template.toml) == text


def test_substitutes_are_toml_and_say_what_kind_of_value_stands_there() -> None:
    text = (
        'p = "{{ .A }}/x"\nSystemdCgroup = {{ .S }}  # as runc\nn = {{ .N }}\n{{ range .M }}\n["{{ . }}"]\n{{ end }}\n'
    )
    doc = tomllib.loads(gotemplate.read(text).toml)
    assert doc["SystemdCgroup"] is True
    assert isinstance(doc["p"], str)
    assert doc["p"].endswith("/x")
    assert isinstance(doc["n"], str)
    assert [isinstance(value, dict) for value in doc.values()].count(True) == 1


def test_the_base_template_and_fields_are_found_in_actions_alone() -> None:
    template = gotemplate.read(
        "{{- template `base` . -}}\n# .ExtraRuntimes\n{{/* .DefaultRuntime */}}\n{{ $.SystemdCgroup }}\n"
    )
    assert template.base
    assert [template.uses(name) for name in (".ExtraRuntimes", ".DefaultRuntime", ".SystemdCgroup", ".Systemd")] == [
        False,
        False,
        True,
        False,
    ]
    assert not gotemplate.read('{{/* {{ template "base" . }} */}}\n').base


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("{{ if .X }}\na = 1\n{{ end }}\n", "line 2 of the template would change, and is rendered under a condition"),
        ("[t]\n{{ range .X -}}\n{{ end -}}\na = 1\n", "line 3 of the template ends in -}}"),
    ],
)
def test_an_edit_where_it_would_not_stand_is_refused(text: str, printed: str) -> None:
    template = gotemplate.read(text)
    with pytest.raises(Refusal) as refusal:
        template.edited(template.toml.replace("a = 1", "a = 2"))
    assert refusal.value.problem.what.startswith(printed)


@pytest.mark.parametrize("text", ["{{", "{{ if .X }}", "a = 1\n{{ end }}\n", "{{/* no end\n"])
def test_a_template_that_go_cannot_read_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="an action without its end"):
        gotemplate.read(text)
