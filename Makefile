# Every target sets up what it needs: a machine with python3 (3.11 or newer), venv and pip is enough.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
# What is installed: to train (setup, demo, bench), to check style and types, to run all tests. The names hold a sum of
# what the installation came from, and where: after an update, or in a copy, it is made again whatever the files' times.
SUM    := $(shell { echo '$(CURDIR)'; cat pyproject.toml; grep '^__version__' sphere/__init__.py; } | cksum | tr ' ' -)
READY  := $(VENV)/.ready-$(SUM)
LINT   := $(VENV)/.ready-lint-$(SUM)
TEST   := $(VENV)/.ready-test-$(SUM)
DOCS   := $(VENV)/.ready-docs-$(SUM)
INSTALL = $(RUN) -m pip install --quiet --disable-pip-version-check --editable
# Processes that test: one more than two cores, since some tests wait for processes that end or begin.
TESTERS ?= 3
# the Python that a bundle is for
PY     ?= 3.12

.PHONY: setup test lint format demo bench browser package bundle docs docs-serve clean

setup: $(READY)

$(READY):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else f"sphere needs Python 3.11 or newer, this is {v[0]}.{v[1]}; try: make PYTHON=python3.12 ...")'
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once; a minute)"
	@rm -f $(VENV)/.ready*
	@$(INSTALL) '.[metaworld]'
	@$(VENV)/bin/sphere --version >/dev/null
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
	@touch $@

$(DOCS): $(READY)
	@echo "installing what builds the documentation"
	@$(INSTALL) '.[docs]'
	@touch $@

# Hundreds of processes read the same modules: what they compiled is kept, whatever the shell says.
test: export PYTHONDONTWRITEBYTECODE =
test: $(TEST)
	@command -v chromium >/dev/null || echo "no browser: tests of the report in one are skipped (make browser installs one)"
	$(RUN) -m pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder

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

# the only target that installs something outside of .venv
browser:
	@command -v chromium >/dev/null || test "$$(id -u)" = 0 \
	  || { echo "installing chromium needs root: sudo make browser" >&2; exit 1; }
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }

# sdist and wheel in build/dist, and the wheel tried in a fresh environment outside of this checkout
package: $(LINT)
	$(RUN) scripts/package.py

# For a machine without a network that has jax: make bundle PY=3.12, copy and unpack bundle.tar.xz, PYTHONPATH=bundle python3 -m sphere
# With TESTS=1 also what tests need, to test a checkout there: PYTHONPATH=.:bundle python3 -m pytest
# With WARP=1 also what GPU simulators need, in parts: cat bundle-warp.tar.xz.* | tar xJ
#   SPHERE_WORKER_PATH=bundle PYTHONPATH=bundle-warp:bundle python3 -m sphere train --preset humanoidbench-crl-released
bundle: $(READY)
	$(RUN) scripts/bundle.py --python $(PY) $(if $(TESTS),--tests) $(if $(WARP),--warp) $(if $(ARCH),--arch $(ARCH))

# The documentation, into site/: open site/index.html. A warning is an error.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet

docs-serve: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs serve --dev-addr 127.0.0.1:8000

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .xla_cache
