# Every target works on a fresh machine: it first installs what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PYTHON ?= python3
RUN := $(VENV)/bin
PACKAGES := python3-venv python3-dev pkg-config gcc libtss2-dev swtpm swtpm-tools

.PHONY: help setup system-packages demo test corpus check format lock bench

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

system-packages:
	@deploy/install-packages.sh $(PACKAGES)

$(VENV)/.installed: requirements.lock pyproject.toml | system-packages
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(RUN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(VENV)/.installed  ## .venv with the nodewarden command

demo: setup  ## the whole flow on this machine, on a real software TPM
	@$(RUN)/nodewarden demo $(ARGS)

test: setup  ## unit tests and tests on a real software TPM
	$(RUN)/pytest -n auto $(ARGS)

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
	  --no-emit-trusted-host --extra attester --extra verifier --extra admission --extra dev \
	  --output-file requirements.lock pyproject.toml

bench: setup  ## figures as JSON on stdout, a table on stderr; ONLY=name,... picks
	@$(RUN)/python -m benchmarks.run $(ONLY)
