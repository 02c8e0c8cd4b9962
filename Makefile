# Two commands are the whole set-up: `make serve` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PY := .venv/bin/python
PYTHON ?= python3
ARGS ?=
# Test processes at a time; 0 runs everything in one, as a debugger wants it. Two in five compute, the others
# wait for servers and browsers (tests/support/scheduling.py): with more, conversations starve. Each takes 0.5 to 2 GB.
JOBS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((cores < 2 ? 2 : cores < 4 ? 2 * cores + 1 : 8)))
# A quarter of what a quick test takes is waiting: one process more than there are cores.
FAST_JOBS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((cores + 1)))
# Byte code is kept even where the environment forbids it: without it each of the hundreds of processes that
# tests start compiles everything.
TEST_ENV := PYTHONDONTWRITEBYTECODE=
CODE := src tests tools training
# $(call debian,PACKAGE): install it where that is allowed; fails where it is not.
debian = { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	&& echo "── parley: installing Debian's $(1) for the tests" \
	&& apt-get update -qq && apt-get install -y -qq --no-install-recommends $(1) >/dev/null; }
SLOW_FOLDERS := $(addprefix tests/,bench clients deploy docs executor golden models openai system web)
# Of those folders what takes about a second each; all of the others.
FAST_OF_SLOW := executor/test_scaling golden/test_drift openai/test_sources \
	$(addprefix models/,test_grammar test_parrot) \
	$(addprefix models/cascade/test_,hearing vision writer) \
	$(addprefix models/minicpmo45/test_,language model_replies quantize speech_buffer voices)
FAST := $(filter-out $(SLOW_FOLDERS) $(addprefix tests/,__pycache__ support transcripts),$(patsubst %/,%,$(wildcard tests/*/))) $(wildcard tests/test_*.py) \
	$(FAST_OF_SLOW:%=tests/%.py)
SERVING := .venv/.serving
STAMP := .venv/.ready
PIP := $(PY) -m pip install --disable-pip-version-check --progress-bar on -c constraints.txt
# Which build of PyTorch: `cpu`, or `default` for what the package index offers, which on Linux brings
# CUDA. Without a word: `cpu` on a Linux machine without an NVIDIA card.
TORCH ?= $(shell [ "$$(uname -s)" != Linux ] || nvidia-smi -L 2>/dev/null | grep -q GPU && echo default || echo cpu)
# PyTorch's CPU wheel index (its "Get started" page shows the address under pip, CPU). Tried first when set.
TORCH_CPU_INDEX ?=
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)

.PHONY: help setup pages serve browser speakers programs clients test test-long test-fast test-clients fmt lint type bench web web-check web-test web-bench web-wait web-hour web-shots npm gpu clean

help: ## this list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | awk -F ':.*?## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with everything for development

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit("parley needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@echo "── parley: making .venv (once)"
	@$(PYTHON) -m venv .venv

# What serving needs, and no more.
$(SERVING): pyproject.toml constraints.txt | $(PY)
	@echo "── parley: installing (1/2) PyTorch, $(TORCH) build (both parts: 350 MB to fetch with the CPU build, 3 GB with CUDA)"
ifeq ($(TORCH),cpu)
	@{ [ -n "$(TORCH_CPU_INDEX)" ] && $(PIP) --retries 1 --timeout 20 --index-url "$(TORCH_CPU_INDEX)" torch==$(TORCH_VERSION)+cpu; } \
		|| $(PIP) torch==$(TORCH_VERSION)+cpu 2>/dev/null \
		|| { echo "── parley: no CPU build of PyTorch could be reached; the one of the package index may bring CUDA, 2.7 GB."; \
			echo "   To spare that: Ctrl-C, and make serve TORCH_CPU_INDEX=ADDRESS (PyTorch's CPU wheel index; its"; \
			echo "   'Get started' page shows the address under pip, CPU)."; \
			$(PIP) torch; }
else
	@$(PIP) torch
endif
	@echo "── parley: installing (2/2) the server"
	@$(PIP) -e '.[worker,talk]' -e packages/parley-pocket-data
	@$(PY) -c 'import pocketsphinx' 2>/dev/null || $(PIP) pocketsphinx \
		|| echo "── parley: pocketsphinx has no binaries for this Python and needs a C compiler; without it, a short \"stop\" does not interrupt an answer"
	@touch $@

$(STAMP): $(SERVING)
	@echo "── parley: installing what tests and tools need"
	@$(PIP) -e '.[dev]'
	@# It asks for websockets below 17 without needing it; the rest of what it needs is in [dev].
	@$(PIP) --no-deps openai-agents
	@touch $@

pages: $(SERVING) ## make the pages as they are served, after a change in src/parley/web
	@$(PY) -m tools.pages

serve: pages ## start the server; ARGS="--http --port 8080" adds flags
	@.venv/bin/parley serve $(ARGS)

browser: # what the browser tests need, where it may be installed; they say in one line why they skip
	@command -v npm >/dev/null && $(MAKE) -s node_modules/.package-lock.json \
		|| echo "── parley: npm is absent or failed; tests of the pages will be skipped"
	@{ command -v chromium && command -v chromium-headless-shell; } >/dev/null \
		|| $(call debian,chromium chromium-headless-shell) || command -v chromium >/dev/null \
		|| echo "── parley: chromium is absent; tests in a browser will be skipped"

speakers: # a synthesiser whose voices the pocket model is asked with, where it may be installed
	@$(PY) -c 'import ctypes; ctypes.CDLL("libflite.so.1")' 2>/dev/null || $(call debian,libflite1) \
		|| echo "── parley: flite is absent; tests that need its voices will be skipped"

programs: # servers and linters that tests run, where they may be installed
	@command -v redis-server >/dev/null || $(call debian,redis-server) \
		|| echo "── parley: redis-server is absent; tests of several gateways and of Ray's head will be skipped"
	@command -v promtool >/dev/null || $(call debian,prometheus) \
		|| echo "── parley: prometheus is absent; tests of rules and dashboards in it will be skipped"
	@command -v nginx >/dev/null || $(call debian,nginx-light) \
		|| echo "── parley: nginx is absent; tests of the reverse proxy will be skipped"
	@[ -x .venv/bin/hadolint ] || $(PIP) -q -e '.[lint-deploy]' \
		|| echo "── parley: hadolint and others cannot be installed; tests of the deploy files will be skipped"

test: $(STAMP) browser speakers programs clients ## every test that this machine can run
	@$(TEST_ENV) $(PY) -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

test-long: export LONG_TESTS := 1
test-long: ARGS += --hypothesis-profile=default
test-long: test ## the same with more repetitions in leak hunts and fuzz tests

test-fast: $(STAMP) ## the quick tests of every part, without whole servers
	@# None of the ignored file is quick, and importing it takes each process a quarter of a second.
	@$(TEST_ENV) $(PY) -m pytest -n $(FAST_JOBS) -m "not slow" $(FAST) --ignore tests/gateway/test_schemathesis.py $(ARGS)

# SDKs of others, which need other versions than we and each other do.
CLIENTS := $(patsubst tests/clients/environments/%.txt,.venv-clients/%/.ready,$(wildcard tests/clients/environments/*.txt))
.venv-clients/%/.ready: tests/clients/environments/%.txt | $(STAMP)
	@echo "── parley: installing SDKs of others for the tests: $* (once)"
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D) \
		&& $(@D)/bin/python -m pip install --quiet --no-compile --no-deps -r $< && touch $@

clients: $(STAMP) # what their first examples run with, where it may be installed (1.5 GB)
	@$(MAKE) -s -k $(CLIENTS) || echo "── parley: tests with SDKs that cannot be installed will be skipped"

test-clients: export LONG_TESTS := 1
test-clients: clients browser ## the SDKs of others, unmodified, against this server, with every scenario of pipecat and LiveKit
	@$(TEST_ENV) $(PY) -m pytest -n 0 tests/clients $(ARGS)

fmt: $(STAMP) ## format the code
	@.venv/bin/ruff format $(CODE) && .venv/bin/ruff check --fix $(CODE)

lint: $(STAMP) ## ruff, the import rules, and biome where npm ci has put it
	@.venv/bin/ruff format --check $(CODE) && .venv/bin/ruff check --no-cache $(CODE) && .venv/bin/lint-imports
	@[ ! -x node_modules/.bin/biome ] || node_modules/.bin/biome check --error-on-warnings

type: $(STAMP) ## mypy
	@.venv/bin/mypy

bench: $(STAMP) ## benches for developers; ARGS="relay" or ARGS="session"
	@$(PY) -m tools.bench $(ARGS)

web: $(STAMP) ## generate the wire types and JSON Schema
	@$(PY) -m tools.wire_types

# The lock lacks optional packages of the linter for systems that a registry here does not serve; where
# npm insists on them, the exact versions of package.json are installed without the lock.
node_modules/.package-lock.json: package.json package-lock.json
	@npm ci --ignore-scripts --silent >/dev/null 2>&1 || npm install --ignore-scripts --no-package-lock --silent

web-check: node_modules/.package-lock.json ## types and tests of the browser code, without a browser
	@npm run --silent check && npm run --silent test

web-test: $(STAMP) node_modules/.package-lock.json ## conversations in headless Chromium (Debian: chromium)
	@$(PY) -m pytest tests/web $(ARGS)

web-bench web-wait web-hour: $(STAMP) pages node_modules/.package-lock.json
	@mkdir -p .shots && $(PY) -m tests.web.speech $(SPEECH)
	@node --no-warnings --experimental-websocket tests/web/figures.mjs --wav $(firstword $(SPEECH)) $(FIGURES) $(ARGS)
web-bench web-hour: SPEECH := .shots/speech.wav
web-bench: ## figures of the pages: how soon they can be used
web-wait: SPEECH := .shots/people.wav --people
web-wait: FIGURES := wait --model pocket
web-wait: ## how long a person at a page waits for an answer, from the last word to the first sound
web-hour: FIGURES := hour
web-hour: ## one call of an hour, its memory and its clocks; ARGS="--minutes 10" for less

web-shots: $(STAMP) pages node_modules/.package-lock.json ## pictures of every page into .shots/; ARGS="call omni" for some, ARGS=--docs for those of the docs
	@mkdir -p .shots && $(PY) -m tests.web.speech .shots/speech.wav 'What is the capital of France?'
	@node --no-warnings tests/web/shots.mjs --model pocket --wav .shots/speech.wav --out .shots $(ARGS)

DIST ?= dist
npm: ## the JavaScript client as npm's package, into dist/, beside the wheel
	@[ -e node_modules/typescript-native/bin/tsc ] || $(MAKE) -s node_modules/.package-lock.json
	@npm run --silent types
	@mkdir -p "$(DIST)" && npm pack --loglevel error --pack-destination "$$(cd "$(DIST)" && pwd)" ./src/parley/web

gpu: $(STAMP) ## tests that need a GPU
	@OMP_NUM_THREADS=$$(getconf _NPROCESSORS_ONLN) $(PY) -m pytest -m gpu $(ARGS)

clean: ## remove what the tools left behind (keeps .venv)
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist
