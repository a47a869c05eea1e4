#!/bin/sh
# All static checks; every one runs, and the exit status says whether any failed.
set -u
failed=''

check() {
    name=$1
    shift
    echo "--- $name"
    "$@" || failed="$failed $name"
}

# Scripts without .sh (stand-ins, .ci/run) are known by their first line.
shell_files() {
    { git ls-files '*.sh'; git grep -lIE '^#! ?/bin/sh' -- ':!*.md' ':!*.py'; } | sort -u
}

check ruff-format ruff format --check --quiet .
check ruff ruff check --quiet .
check mypy mypy
# shellcheck disable=SC2046 # the list is meant to be split; no tracked name has a space
check shellcheck shellcheck --external-sources $(shell_files)
check ansible-lint ansible-lint --offline --profile production roles playbooks
check site env NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
[ -z "$failed" ] || echo "failed:$failed" >&2
[ -z "$failed" ]
