# Every target sets up what it needs: a machine with python3 (3.11 or newer), venv and pip is enough.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
# what is installed: to train (setup, demo, bench), to check style and types, to run all tests
READY  := $(VENV)/.ready
LINT   := $(VENV)/.ready-lint
TEST   := $(VENV)/.ready-test
INSTALL = $(RUN) -m pip install --quiet --disable-pip-version-check --editable
# the Python that a bundle is for
PY     ?= 3.12

.PHONY: setup test lint format demo bench bundle clean

setup: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else f"sphere needs Python 3.11 or newer, this is {v[0]}.{v[1]}; try: make PYTHON=python3.12 ...")'
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once; a minute)"
	@$(INSTALL) '.[metaworld]'
	@touch $@

$(LINT): $(READY)
	@echo "installing what checks style and types"
	@$(INSTALL) '.[lint]'
	@touch $@

$(TEST): $(READY)
	@echo "installing what tests need (once; a minute or two)"
	@$(INSTALL) '.[test]'
	@{ $(RUN) -m pip install --quiet --disable-pip-version-check 'torch==2.13.0+cpu' && $(INSTALL) '.[torch-hosts]'; } >/dev/null 2>&1 \
	  || echo "no CPU build of PyTorch in the package index: tests of sphere.torch are skipped (pip install '.[torch-hosts]' runs them)"
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 \
	  || echo "no browser: tests of the report in one are skipped (as root: apt-get install -y chromium)"
	@touch $@

test: $(TEST)
	$(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(LINT)
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

format: $(LINT)
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

demo: $(READY)
	$(RUN) -m sphere demo

bench: $(READY)
	$(RUN) -m benchmarks.penalty
	$(RUN) -m benchmarks.ntk

# For a machine without a network that has jax: make bundle PY=3.12, copy and unpack bundle.tar.xz, PYTHONPATH=bundle python3 -m sphere
# With TESTS=1 also what tests need, to test a checkout there: PYTHONPATH=.:bundle python3 -m pytest
bundle: $(READY)
	$(RUN) scripts/bundle.py --python $(PY) $(if $(TESTS),--tests)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .xla_cache
