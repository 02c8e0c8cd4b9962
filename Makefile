# Two commands are the whole set-up: `make serve` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PY := .venv/bin/python
PYTHON ?= python3
ARGS ?=
# Test processes at a time; 0 runs everything in one, as a debugger wants it.
JOBS ?= 2
# Several test processes with several threads each would fight for the cores.
ONE_THREAD := OMP_NUM_THREADS=1
CODE := src tests training
# $(call debian,PACKAGE): install it where that is allowed; fails where it is not.
debian = { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	&& echo "── parley: installing Debian's $(1) for the tests" \
	&& apt-get update -qq && apt-get install -y -qq --no-install-recommends $(1) >/dev/null; }
SLOW_FOLDERS := tests/house tests/models tests/golden tests/training tests/web
STAMP := .venv/.ready

.PHONY: help setup serve browser speakers test test-fast fmt lint type bench web web-check web-test web-shots gpu docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | awk -F ':.*?## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with everything for development

$(STAMP): pyproject.toml constraints.txt
	@echo "── parley: making .venv (once; a few minutes, about 1.5 GB)"
	@$(PYTHON) -c 'import sys; sys.exit("parley needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@echo "── parley: installing (1/2) PyTorch"
	@$(PY) -m pip install --disable-pip-version-check --progress-bar on -c constraints.txt torch
	@echo "── parley: installing (2/2) everything else"
	@$(PY) -m pip install --disable-pip-version-check --progress-bar on -c constraints.txt -e '.[dev]'
	@touch $@

serve: $(STAMP) ## start the server; ARGS="--http --port 8080" adds flags
	@.venv/bin/parley serve $(ARGS)

browser: # what the browser tests need, where it may be installed; they say in one line why they skip
	@command -v npm >/dev/null && $(MAKE) -s node_modules/.package-lock.json \
		|| echo "── parley: npm is absent or failed; tests of the pages will be skipped"
	@command -v chromium >/dev/null || $(call debian,chromium) \
		|| echo "── parley: chromium is absent; tests in a browser will be skipped"

speakers: # the synthesiser whose voices the pocket model's tests ask with, where it may be installed
	@$(PY) -c 'import ctypes; ctypes.CDLL("libflite.so.1")' 2>/dev/null || $(call debian,libflite1) \
		|| echo "── parley: flite is absent; tests that need its voices will be skipped"

test: $(STAMP) browser speakers ## every test that this machine can run (under 15 minutes on two cores)
	@$(ONE_THREAD) $(PY) -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

test-fast: $(STAMP) ## the quick tests of the parts, without networks and whole houses
	@$(ONE_THREAD) $(PY) -m pytest -n $(JOBS) -m "not slow" $(SLOW_FOLDERS:%=--ignore=%) $(ARGS)

fmt: $(STAMP) ## format the code
	@.venv/bin/ruff format $(CODE) && .venv/bin/ruff check --fix $(CODE)

lint: $(STAMP) ## ruff and the import rules
	@.venv/bin/ruff format --check $(CODE) && .venv/bin/ruff check $(CODE) && .venv/bin/lint-imports

type: $(STAMP) ## mypy
	@.venv/bin/mypy

bench: $(STAMP) ## measure; ARGS="relay" or ARGS="session"
	@.venv/bin/parley bench $(ARGS)

web: $(STAMP) ## generate the wire types and JSON Schema
	@$(PY) -m parley.protocol.export

node_modules/.package-lock.json: package.json package-lock.json
	@npm ci --ignore-scripts --silent

web-check: node_modules/.package-lock.json ## types and tests of the browser code, without a browser
	@npm run --silent check && npm run --silent test

web-test: $(STAMP) node_modules/.package-lock.json ## conversations in headless Chromium (Debian: chromium)
	@$(PY) -m pytest tests/web $(ARGS)

web-shots: $(STAMP) node_modules/.package-lock.json ## pictures of every page into .shots/; ARGS="call omni" for some
	@mkdir -p .shots && $(PY) -m tests.web.speech .shots/speech.wav
	@node tests/web/shots.mjs --wav .shots/speech.wav --out .shots $(ARGS)

gpu: $(STAMP) ## tests that need a GPU
	@$(PY) -m pytest -m gpu $(ARGS)

clean: ## remove what the tools left behind (keeps .venv)
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist
