# Everything runs in .venv, which `make setup` makes with Python and make alone.
PYTHON ?= python3
BIN := .venv/bin

SHOWCASE := docs/showcase/report.html

.PHONY: demo test test-long setup lint docs showcase clean
demo: setup
	$(BIN)/smg demo --out demo

test: setup
	$(BIN)/python -m pytest -n auto --dist worksteal

# What is too long for every change: many kills, many mutated files, real peers (tests say what they need installed).
test-long: setup
	$(BIN)/python -m pytest -m long

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup showcase
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The documentation's example report, from phantoms: a minute of processor time, then kept until its sources change.
showcase: $(SHOWCASE)

$(SHOWCASE): experiments/showcase.py smg/configs/demo.yaml $(wildcard smg/report/*.py smg/report/assets/*) | .venv/ready
	$(BIN)/python -m experiments.showcase $@

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("smg needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 setup")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt setuptools
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch .venv/ready

clean:
	rm -rf .venv demo site docs/showcase .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
