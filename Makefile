# make setup   an environment in .venv with everything
# make demo    constrained generation on a real model, without and with speculation
# make test    the tests
# make check   lint, format and types
# make docs    the documentation, in site/
# make native  the native libraries (C++) again; `make setup` does so when their sources have changed
# make test-sglang   the sglang adapter's tests on sglang itself, in an environment of its own (2.5 GB)
# make test-vllm     the vLLM adapter's tests on vLLM itself, in an environment of its own (1 GB)
# make bench-peers   vLLM in an environment of its own, for the benchmarks that compare with it (1 GB)
PYTHON ?= python3
BIN := .venv/bin
export OMP_WAIT_POLICY := PASSIVE

NATIVE_SOURCES := hatch_build.py $(wildcard specgrammar/native/*.h specgrammar/native/*.cpp backends/*/*.cpp)

.PHONY: setup demo test check docs native format lock clean bench-peers test-sglang test-vllm

setup: $(BIN)/.ready
	@$(MAKE) --no-print-directory $(BIN)/.native

$(BIN)/.ready: pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@ $(BIN)/.native

# The editable install above compiles them, too. Without a C++ compiler grammars are walked by Python.
$(BIN)/.native: $(NATIVE_SOURCES)
	$(BIN)/python hatch_build.py && touch $@ || echo "without new native libraries; 'make native' tries again"

native: $(BIN)/.ready
	$(BIN)/python hatch_build.py

demo: setup
	$(BIN)/python examples/demo.py

test: setup
	$(BIN)/specgrammar model fetch
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: setup
	{ sed -n 1p requirements.lock; $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//'; } > .lock.tmp
	mv .lock.tmp requirements.lock

# sglang pins packages that need a GPU, so it and what it imports are installed without their dependencies.
test-sglang: .venv-sglang/.ready
	.venv-sglang/bin/specgrammar model fetch
	.venv-sglang/bin/python -m pytest tests/sglang_adapter

.venv-sglang/.ready: pyproject.toml requirements-sglang.lock
	$(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/python -m pip install --quiet --no-deps --requirement requirements-sglang.lock
	.venv-sglang/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

# SPECGRAMMAR_VLLM_PYTHON=... uses an environment that is there already.
VLLM_PYTHON = $(or $(SPECGRAMMAR_VLLM_PYTHON),$(CURDIR)/.venv-vllm/bin/python)

test-vllm: setup $(if $(SPECGRAMMAR_VLLM_PYTHON),,.venv-vllm/.ready)
	$(BIN)/specgrammar model fetch
	SPECGRAMMAR_VLLM_PYTHON=$(VLLM_PYTHON) $(BIN)/python -m pytest tests/vllm_adapter

bench-peers: .venv-vllm/.ready

# vLLM asks for torchvision, which goes with another torch, so what it needs is installed without dependencies.
.venv-vllm/.ready: pyproject.toml requirements-vllm.lock
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --no-deps --requirement requirements-vllm.lock
	.venv-vllm/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

clean:
	rm -rf .venv build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
