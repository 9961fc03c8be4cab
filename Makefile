# `make run` starts the app, `make test` runs the gate; `make help` lists the rest.
PYTHON ?= python3
PORT ?= 8501

VENV = .venv
PY = $(VENV)/bin/python
PIP = $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt

run: $(VENV)/run.stamp
	$(PY) -m streamlit run app.py --server.port $(PORT)

# Browser tests come last, two files at a time: each has a server of its own, each half a browser.
test: lint
	OMP_NUM_THREADS=1 $(PY) -m pytest -m 'not browser' -n auto --dist loadfile
	$(PY) -m pytest -m 'browser and not soak' -n 2 --dist loadfile

# What needs no test to run: style, types, import rules.
lint: $(VENV)/test.stamp
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(VENV)/bin/basedpyright
	$(VENV)/bin/lint-imports --no-logo

# The long forms of tests whose short forms are in the gate.
soak: $(VENV)/test.stamp
	$(PY) -m pytest -m soak
	KRRVIZ_SOAK=1 $(PY) -m pytest tests/browser/test_links.py

bench: $(VENV)/run.stamp
	$(PIP) -e '.[bench]'
	$(PY) -m krrviz bench

screenshots: $(VENV)/test.stamp
	$(PY) tests/browser/screenshots.py

help:
	@echo 'make run          start the app on http://localhost:$(PORT) (PORT=8600 picks another port)'
	@echo 'make test         style, types, import rules and every test'
	@echo 'make lint         the first three of these'
	@echo 'make soak         the long forms of tests: every page with every data set, and more'
	@echo 'make bench        time the computations on this machine'
	@echo 'make screenshots  draw the pictures that the README shows'
	@echo 'make clean        remove the environment and what the tools leave behind'
	@echo 'PYTHON=python3.12 make run   builds the environment with that Python'

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find app.py krrviz pages tests -name __pycache__ -prune -exec rm -rf {} +

# The stamps remember an install, so that it is repeated only when its inputs have changed.
$(VENV)/run.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo 'krrviz needs Python 3.11 or newer; name one with: PYTHON=/path/to/python3 make run' >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo 'Installing krrviz into $(VENV): minutes the first time, seconds afterwards'
	$(PIP) -e '.[sklearn]'
	@touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp
	$(PIP) -e '.[test]'
	@touch $@

.PHONY: run test lint soak bench screenshots help clean
