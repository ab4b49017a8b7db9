# The words that people and CI use. `make serve` and `make test` need nothing but Python >= 3.11.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
HOST ?= 127.0.0.1
PORT ?= 30000
ARGS ?=
# Processes that share the tests; each has servers of its own, so more cores than this need much memory.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? n : 4)))
PACKAGES := sglang_plug sglang_plug_models sglang_plug_backends sglang_plug_api

# A stamp is newer than pyproject.toml when what it stands for is installed, so a second call installs nothing.
VENV_STAMP := $(VENV)/.made
SERVE_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
# Tests whose examples Hypothesis draws: the same ones each time, but for `make fuzz`.
DRAWING = $(shell grep -rl "from hypothesis import" tests --include="test_*.py")
DOCS_STAMP := $(VENV)/.installed-docs
CLIENTS := .venv-clients
AGENTS := .venv-agents
CLIENTS_STAMP := $(CLIENTS)/.installed

.DEFAULT_GOAL := help
.PHONY: help venv dev serve test check format types docs bench clients fuzz clean

help: ## List the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  \1\t\2/'

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

$(CLIENTS_STAMP): pyproject.toml
	test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install -q 'pip>=25.1'
	$(CLIENTS)/bin/python -m pip install -q --group clients
	test -x $(AGENTS)/bin/python || $(PYTHON) -m venv $(AGENTS)
	$(AGENTS)/bin/python -m pip install -q 'pip>=25.1'
	$(AGENTS)/bin/python -m pip install -q --group agents
	! command -v npm >/dev/null || npm install --silent --no-audit --no-fund --prefix $(CLIENTS)/node \
		'openai@>=6' ai @ai-sdk/openai-compatible zod
	touch $@

serve: $(SERVE_STAMP) ## Serve a model (the demo, or ARGS="--model-path FOLDER ...")
	$(BIN)/sglang-plug serve --host $(HOST) --port $(PORT) $(ARGS)

test: $(DEV_STAMP) ## Run the whole suite (or make test ARGS=tests/policy)
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

check: $(DEV_STAMP) types ## Formatting, lint, types and the rules of the house
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q tests/policy

format: $(DEV_STAMP) ## Rewrite what ruff can rewrite
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: $(DEV_STAMP) ## mypy --strict on the packages
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))

docs: $(DOCS_STAMP) ## Write the generated pages anew and build the site
	$(BIN)/python docs/generate_hooks.py
	$(BIN)/python docs/generate_contracts.py
	$(BIN)/python docs/generate_models.py
	$(BIN)/python docs/generate_structured_outputs.py
	$(BIN)/python docs/generate_config.py
	$(BIN)/python docs/generate_api.py
	$(BIN)/mkdocs build --strict

bench: $(SERVE_STAMP) ## Measure throughput and latency against what the machine can do
	$(BIN)/python -m benchmarks.workloads $(ARGS)

clients: $(DEV_STAMP) $(CLIENTS_STAMP) ## Test with other people's clients (langchain, litellm, instructor, agents, node)
	$(BIN)/python -m pytest tests/e2e/clients $(ARGS)

fuzz: $(DEV_STAMP) ## Send what a fuzzer makes of the OpenAPI document for ten minutes (FUZZ_SECONDS), and draw much more
	FUZZ_SECONDS=$${FUZZ_SECONDS:-600} DRAWN_SCHEMAS=$${DRAWN_SCHEMAS:-1000} $(BIN)/python -m pytest \
		tests/e2e/test_fuzz.py tests/e2e/test_realistic_schemas.py $(ARGS)
	HYPOTHESIS_PROFILE=drawn $(BIN)/python -m pytest -n $(WORKERS) $(DRAWING) $(ARGS)

clean: ## Remove what was built, the environment too
	rm -rf $(VENV) $(CLIENTS) $(AGENTS) build dist .mypy_cache .ruff_cache .pytest_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
