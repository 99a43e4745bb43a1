# Two commands: `make demo` and `make test`. Each makes its own virtual environment first.
# `make docs` builds the documentation as a site.
# `make bench` compares with other tools, and installs those in an environment of their own.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
JOBS ?= 2
# Python compiles what it imports: to compile all that is installed takes half a minute
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --doctest-modules
BENCH ?=  # options of landscope bench, such as --size gpu

.PHONY: demo bench docs test test-all lint types imports tests clean

demo: $(INSTALLED)
	$(BIN)/landscope study run examples/digits.yaml --into demo

bench: $(INSTALLED)
	$(BIN)/landscope bench $(BENCH)

# the site in build/site: every block of python of its pages is run, and a warning is an error
docs: $(INSTALLED)
	$(PIP) --editable '.[dev,docs]'
	OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict

# the types are checked while tests run
test: $(INSTALLED)
	$(MAKE) --jobs 2 lint types imports tests

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/lint-imports --no-logo

tests: $(INSTALLED)
	$(PYTEST) -m "not slow" src tests

test-all: lint types imports
	$(PYTEST) src tests

# torch first and by itself: another package's unpinned requirement must find it there
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[dev]'
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) .bench demo build .mypy_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
