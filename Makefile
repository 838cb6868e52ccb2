# The commands of a checkout. `make test` is what CI runs; `make install TORCH=...` chooses another build of torch.

PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
INSTALLED := .venv/.installed

ALFWORLD := .venv-alfworld

.PHONY: install test test-alfworld lint types imports deadcode fast-tests slow-tests demo clean

install: $(INSTALLED)

# torch first and by itself, so that its build is the one named here and the rest is resolved around it
$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install $(TORCH)
	$(PIP) install --editable '.[dev]'
	touch $@

test: lint types imports deadcode fast-tests slow-tests

lint: install
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

imports: install
	$(BIN)/lint-imports

deadcode: install
	$(BIN)/vulture

fast-tests: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow"

slow-tests: install fast-tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow

# The real ALFWorld engine, in an environment of its own: it compiles a planner and brings old pins.
$(ALFWORLD)/.installed: pyproject.toml
	test -x $(ALFWORLD)/bin/python || $(PYTHON) -m venv $(ALFWORLD)
	$(ALFWORLD)/bin/python -m pip -qq --disable-pip-version-check install --editable '.[alfworld]' pytest hypothesis
	touch $@

test-alfworld: $(ALFWORLD)/.installed
	OMP_NUM_THREADS=1 $(ALFWORLD)/bin/python -m pytest -q tests/envs/test_alfworld.py tests/envs/test_household_against_engine.py

demo: install
	$(BIN)/agentgym train household-demo

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
