# One thread per process: two OpenMP threads on a busy two-core machine are many times slower than one.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-cuda lint bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[sim,dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/mstar-rt demo

test: setup
	$(BIN)/python -m pytest

test-cuda: setup
	$(BIN)/python -m pytest -m cuda -o addopts='-q --import-mode=importlib'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/mstar-rt bench runtime
	$(BIN)/mstar-rt bench plan

clean:
	rm -rf $(VENV) out build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
