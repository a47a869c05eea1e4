# Every target works from a fresh clone, as root on Debian 12 or newer.  `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
COLLECTION := gpunode/collection/ansible_collections/gpunode/node
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help install lock check lint unit test test-all test-vm test-gpu demo picture bench docs site release audit clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

install: $(VENV)/.installed  ## make .venv with gpunode (editable) and all that its checks need (LOCKED=1: as locks/dev.txt)

$(VENV)/.installed: pyproject.toml $(if $(LOCKED),locks/dev.txt) | roles playbooks
	@sh .ci/venv.sh "$(PYTHON)" $(VENV)
ifdef LOCKED
	$(BIN)/pip install --quiet --require-hashes --requirement locks/dev.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
else
	$(BIN)/pip install --quiet --editable '.[dev,docs]'
endif
	@touch $@

lock: | roles playbooks  ## update locks/*.txt: the newest versions that pyproject.toml allows, with their hashes
	@sh .ci/venv.sh "$(PYTHON)" .cache/lock
	.cache/lock/bin/pip install --quiet --upgrade uv
	@PATH="$(CURDIR)/.cache/lock/bin:$$PATH" python .ci/lock.py

# An sdist has the collection's folders once; the links to them at the top level are as in a clone.
roles playbooks:
	ln -s $(COLLECTION)/$@ $@

$(VENV)/.release: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[release]'
	@touch $@

$(VENV)/.molecule: $(VENV)/.installed
	@echo "installing Molecule and its Ansible collections into $(VENV) (600 MB)"
	$(BIN)/pip install --quiet --editable '.[molecule]'
	@touch $@

check: install  ## style, types, shell and the quick unit tests: at most 100 s of CPU time, no root needed
	@$(BIN)/python .ci/tiers.py check

lint: install
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh .ci/lint.sh

unit: install
	@PATH="$(CURDIR)/$(BIN):$$PATH" python -m pytest -q -n 2 --dist loadfile tests/unit -m 'not slow and not extended'

test: install  ## check, the wheel, and a lab node of each engine from nothing to proven and back; needs root, 10 minutes
	@$(BIN)/python .ci/tiers.py test

test-all: install  ## everything: all unit and lab tests, Molecule, ansible-test sanity, a real DKMS build, benchmarks
	@$(BIN)/python .ci/tiers.py all

test-vm: install  ## machines that boot under Secure Boot: real kernels and drivers in QEMU; an hour or more
	@$(BIN)/python .ci/tiers.py vm

test-gpu: install  ## build/gpu: all that tries gpunode on a machine with a GPU, root and no network; start run.sh there
	@PATH="$(CURDIR)/$(BIN):$$PATH" python tests/gpu/build.py build/gpu

demo: install  ## a node with a faked GPU on this machine, from nothing to verified (KEEP=1 keeps the node)
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh .ci/demo.sh

picture: install  ## draw docs/demo.svg from what the demo prints
	@mkdir -p .cache
	PATH="$(CURDIR)/$(BIN):$$PATH" FORCE_COLOR=1 sh .ci/demo.sh >.cache/demo.txt 2>&1
	$(BIN)/python .ci/picture.py .cache/demo.txt docs/demo.svg

figures: install  ## the figures of the code base; those that have fallen go into .ci/figures.toml
	@$(BIN)/python .ci/figures.py --lower
	@$(BIN)/python .ci/figures.py

bench: install  ## measure what docs/performance.md promises
	$(BIN)/python -m benchmarks

docs: install  ## write the generated pages of docs/
	$(BIN)/python -m tools.docs.pages docs

site: install  ## build the documentation as a site into build/site; a warning fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release: $(VENV)/.release  ## everything of a release into dist/: wheel, sdist, gpunode.pyz, collection, bill of materials, licences, audit, sums
	rm -rf dist
	@PATH="$(CURDIR)/$(BIN):$$PATH" python .ci/release.py build dist
	@PATH="$(CURDIR)/$(BIN):$$PATH" python .ci/release.py pyz dist
	@PATH="$(CURDIR)/$(BIN):$$PATH" python .ci/release.py galaxy dist
	@PATH="$(CURDIR)/$(BIN):$$PATH" python .ci/release.py bill dist
	@PATH="$(CURDIR)/$(BIN):$$PATH" python .ci/release.py sums dist

audit: $(VENV)/.release  ## which known holes what a release brings with it has (asks PyPI)
	@mkdir -p .cache/audit
	@PATH="$(CURDIR)/$(BIN):$$PATH" python .ci/release.py build .cache/audit
	@PATH="$(CURDIR)/$(BIN):$$PATH" python .ci/release.py pyz .cache/audit
	@PATH="$(CURDIR)/$(BIN):$$PATH" python .ci/release.py audit .cache/audit

clean:  ## remove lab nodes, .venv and caches
	@if [ -x $(BIN)/gpunode ]; then $(BIN)/gpunode lab down --all; fi
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .ansible .cache dist build
	find . -name __pycache__ -prune -exec rm -rf {} +
