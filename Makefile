# make train   the main job on the default dataset
# make test    linters, types and the default tests
# make test-cluster    what takes longer: hosts that are lost, jobs that are killed, nodes that come and go
# All install what they need into .venv first.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
RUN ?= runs/apidocs
BIN := .venv/bin
TORCH := $(shell sed -n 's/^torch==//p' requirements.txt)
# Where PyTorch publishes its CPU builds, for machines whose own package index has none.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: help install browser train test test-cluster clean
.DEFAULT_GOAL := help

help:
	@sed -n '1,4s/^# //p' Makefile

install: .venv/installed

# Tests open a report in Chromium, and skip that where there is none and we may not install it.
browser:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && ! command -v chromium > /dev/null; then \
	  (apt-get update && apt-get install -y chromium) > /dev/null || echo "no chromium"; fi

train: install
	$(BIN)/python jobs/train.py --run $(RUN) $(ARGS)

test: install browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest $(ARGS)

test-cluster: install
	$(BIN)/pytest -m cluster $(ARGS)

clean:
	rm -rf .venv

.venv/installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v[:2] != (3, 11) and f"Python 3.11 is needed, {sys.executable} is {v[0]}.{v[1]}; use make PYTHON=...")'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "Python lacks venv: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	# torch first and alone, or another package would pull a build of its own choice
	if command -v nvidia-smi > /dev/null; then $(PIP) -c requirements.txt torch==$(TORCH); \
	else $(PIP) -c requirements.txt torch==$(TORCH)+cpu 2> /dev/null \
	  || $(PIP) -c requirements.txt --extra-index-url $(TORCH_CPU_INDEX) torch==$(TORCH)+cpu; fi
	# the list is complete: --no-deps keeps out what a package asks for and we do not use
	$(PIP) --no-deps -r requirements.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $@
