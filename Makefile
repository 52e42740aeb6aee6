# Two commands matter: `make run` and `make test`. Each sets up everything that it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install run test test-all check format clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

run: install
	$(BIN)/trimtab run examples/quickstart.yaml

# Tests that start ranks have the machine to themselves: they wait on deadlines.
test: check
	$(BIN)/pytest -m "not slow and not process" -n auto --dist loadfile
	$(BIN)/pytest -m "not slow and process"

test-all: check
	$(BIN)/pytest -m "not process" -n auto --dist loadfile
	$(BIN)/pytest -m process

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info
