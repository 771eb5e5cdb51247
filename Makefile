SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done

# Tiny models are a hundred times slower with several threads; nothing is fetched from a model hub.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE := 1
export TRANSFORMERS_OFFLINE := 1
export HF_DATASETS_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help setup demo test test-gpu test-frameworks lint clean

help:
	@echo "make setup  the environment in $(VENV), with the versions of constraints.txt"
	@echo "make demo   the dashboard with two validations of tiny:qwen3, until ctrl-C; SERVE=0 ends, PORT=8000, DATA=.demo"
	@echo "make test   the test suite, in parallel"
	@echo "make test-gpu  what only a GPU can show, in five minutes; needs torch, transformers and pytest, GPU_PYTHON=python3"
	@echo "make test-frameworks  ms-swift, AutoModel, Megatron and Miles live, in environments that PLUMBLINE_ENV_* name"
	@echo "make lint   ruff, mypy --strict, import contracts"
	@echo "make clean  removes $(VENV) and $(DATA)"

setup: $(STAMP)

# The stamp is newer than what it was made from, so a second run does nothing.
$(STAMP): constraints.txt pyproject.toml capture/pyproject.toml
	@has_pip() { $(BIN)/python -m pip --version >/dev/null 2>&1; }; \
	if ! has_pip; then \
	  for name in $${PYTHON:-} python3.11 python3.12 python3.13 python3; do \
	    if "$$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	      echo "making $(VENV) with $$("$$name" --version)"; \
	      "$$name" -m venv --clear $(VENV); \
	      break; \
	    fi; \
	  done; \
	fi; \
	if ! has_pip; then \
	  echo "make setup: no Python 3.11 or newer with venv was found; install one (on Debian: python3 python3-venv)," \
	    "or name it: make setup PYTHON=/path/to/python." >&2; \
	  exit 1; \
	fi
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ./capture -e '.[dev]'
	@touch $@

# SERVE=0 ends with the verdicts' exit code, on a port that nobody else has.
DATA ?= .demo
PORT ?= 8000
SERVE ?= 1
demo: setup
	@exec $(BIN)/plumbline demo --data "$(DATA)" $(if $(filter 0,$(SERVE)),--no-serve --port 0,--port "$(PORT)")

test: setup
	$(BIN)/pytest

# Of a bare machine: no make setup, no database; the environment's Python where there is one, else the system's.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)
test-gpu: export PYTHONPATH := $(CURDIR):$(CURDIR)/capture$(if $(PYTHONPATH),:$(PYTHONPATH))
test-gpu:
	@if ! $(GPU_PYTHON) -c 'import pytest, torch, transformers'; then \
	  echo "make test-gpu: $(GPU_PYTHON) lacks torch, transformers or pytest; install them, or name another with GPU_PYTHON." >&2; \
	  exit 1; \
	fi; \
	if ! $(GPU_PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	  echo "make test-gpu: torch sees no CUDA device on this machine, so the GPU tests are skipped."; \
	  exit 0; \
	fi; \
	$(GPU_PYTHON) -m pytest -c tests/gpu/bare.ini --rootdir . --confcutdir tests/gpu -m gpu tests/gpu

# The frameworks of environments of their own, live: each test's reason says which variable names its environment.
test-frameworks: setup
	@date -u +"%Y-%m-%d %H:%M UTC"
	$(BIN)/pytest -n 0 -vv -rs --durations=0 tests/frameworks/test_*_live.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers auto
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) $(DATA)
