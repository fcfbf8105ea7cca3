# Every target sets up what it needs: a machine with python3 (3.11 or 3.12), venv and pip is enough.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready

.PHONY: setup test lint format demo bench clean

setup: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else f"sphere needs Python 3.11 or newer, this is {v[0]}.{v[1]}; try: make PYTHON=python3.12 ...")'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once; a minute or two)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

test: $(READY)
	$(PY) -m pytest -n 2

lint: $(READY)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

format: $(READY)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

demo: $(READY)
	$(PY) -m sphere.demo

bench: $(READY)
	$(PY) -m benchmarks.penalty
	$(PY) -m benchmarks.ntk

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
