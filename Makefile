# Everything a clone needs, each target doing its own set-up in .venv (and .venv-oracle) from locked versions.
#   make demo    plan, check and emit a DeepSeek-V3 run at 128K on 256 H100
#   make test    lint, types, the comparison with the real frameworks, and every test
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
MOE := $(BIN)/moe-long-context
ORACLE := .venv-oracle/bin/python -W ignore
DEMO := build/demo
JOBS ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: help setup demo test lint oracle golden generated bench lock dist clean
help:
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

setup: .venv/.made-from-lock ## .venv with locked dependencies and the command .venv/bin/moe-long-context

.venv/.made-from-lock: requirements/dev.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "needs Python 3.11, 3.12 or 3.13; say which with make PYTHON=/path/to/python"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: setup ## plan DeepSeek-V3 at 128K on 256 H100, check the plan, emit the recipe
	@BIN=$(BIN) OUT=$(DEMO) tests/docs/demo.sh

test: setup lint oracle ## everything CI runs; pytest's summary comes last
	$(BIN)/python -m pytest -n $(JOBS)

lint: setup ## ruff and mypy --strict
	$(BIN)/ruff check tools tests evals
	$(BIN)/mypy

oracle: setup ## compare the golden files with the real Megatron-Core and Megatron Bridge, on the CPU
	PYTHON=$(PYTHON) tests/oracle/setup.sh
	$(ORACLE) tests/oracle/dump_fields.py
	$(ORACLE) tests/oracle/check.py

golden: setup ## rewrite golden files, asking the real frameworks, and then every generated document
	PYTHON=$(PYTHON) tests/oracle/setup.sh
	$(ORACLE) tests/oracle/dump_fields.py --write
	$(ORACLE) tests/oracle/check.py --write
	$(MAKE) --no-print-directory generated

generated: setup ## rewrite what the package's own code gives: prediction grids, scoreboard, rule pages, recipes, README
	$(BIN)/python evals/accuracy/grid.py --write
	$(BIN)/python evals/accuracy/score.py --write
	$(BIN)/python evals/reference_numbers.py --write
	$(BIN)/python -m moe_long_context.rules.pages --write skill/references/rules
	$(BIN)/python tests/recipes/golden_recipes.py
	$(BIN)/python tests/docs/readme.py write

bench: setup ## time one evaluation, a full search and the cold start
	$(BIN)/python tests/speed/bench.py

lock: ## pin requirements/*.in anew
	tests/docs/lock.sh $(PYTHON)

dist: setup ## wheel and source distribution in dist/
	$(BIN)/python -m build --no-isolation

clean: ## remove what the targets above made
	rm -rf .venv .venv-oracle build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
