# Every target works on a fresh machine: it first installs what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PYTHON ?= python3
RUN := $(VENV)/bin
PACKAGES := python3-venv python3-dev pkg-config gcc libtss2-dev swtpm swtpm-tools

NODE_PACKAGES := runc containernetworking-plugins busybox-static debootstrap iproute2

.PHONY: help setup system-packages demo test corpus check format lock bench control-plane e2e cluster

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

system-packages:
	@deploy/install-packages.sh $(PACKAGES)

$(VENV)/.installed: requirements.lock pyproject.toml | system-packages
	@# An existing environment stays with its interpreter: a second one's would break its compiled modules.
	[ -x $(RUN)/python ] || $(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(RUN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(VENV)/.installed  ## .venv with the nodewarden command

demo: setup  ## the whole flow on this machine, on a real software TPM
	@$(RUN)/nodewarden demo $(ARGS)

test: setup  ## unit tests and tests on a real software TPM
	$(RUN)/pytest -n auto $(ARGS)

control-plane: setup  ## build a Kubernetes control plane and a node's programs, once, outside the repository
	@[ "$$(id -u)" -ne 0 ] || deploy/install-packages.sh $(NODE_PACKAGES)
	@PYTHON=$(PYTHON) deploy/control-plane/build.sh
	@PYTHON=$(PYTHON) deploy/control-plane/build-node.sh
	@PYTHON=$(PYTHON) deploy/control-plane/build-helm.sh
	@PYTHON=$(PYTHON) deploy/control-plane/build-cert-manager.sh
	@PYTHON=$(PYTHON) deploy/control-plane/build-policy-reports.sh

e2e: control-plane  ## tests against a real control plane and a real node
	PATH="$(CURDIR)/$(RUN):$$PATH" $(RUN)/pytest tests/e2e --durations=10 $(ARGS)

cluster: control-plane  ## a Kubernetes cluster on this machine to play with, until Ctrl-C
	@PATH="$(CURDIR)/$(RUN):$$PATH" $(RUN)/python -m tests.e2e.cluster $(ARGS)

corpus: setup  ## compare with independently computed results over NODEWARDEN_CORPUS
	@deploy/check-corpus.sh $(RUN)

check: setup  ## format, lint, types, import contracts
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy
	$(RUN)/lint-imports

format: setup  ## rewrite the sources in the one format
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

lock: setup  ## resolve pyproject.toml into requirements.lock again
	$(RUN)/pip-compile --quiet --strip-extras --generate-hashes --allow-unsafe --no-emit-index-url \
	  --no-emit-trusted-host --no-emit-find-links --extra attester --extra verifier --extra admission --extra dev \
	  --output-file requirements.lock pyproject.toml

bench: setup  ## figures as JSON on stdout, a table on stderr; ONLY=name,... picks
	@$(RUN)/python -m benchmarks.run $(ONLY)
