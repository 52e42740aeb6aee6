# Two commands matter: `make run` and `make test`. Each sets up everything that it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install run test test-all soak check format clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

run: install
	$(BIN)/trimtab run examples/quickstart.yaml

# Ranks wait for each other more than they compute: two runs at once keep two cores busy. What measures runs alone.
TOGETHER := -n auto --dist loadfile
BY_TWO := -n 2 --dist loadfile

test: check
	$(BIN)/pytest -m "not slow and not process and not alone" $(TOGETHER)
	$(BIN)/pytest -m "not slow and process" $(BY_TWO)
	$(BIN)/pytest -m "not slow and alone"

test-all: check
	$(BIN)/pytest -m "not process and not alone" $(TOGETHER)
	$(BIN)/pytest -m "process" $(BY_TWO)
	$(BIN)/pytest -m "alone"

# Hundreds of faults over all layouts; ends with 1 if one of them cost a bit or left something over.
SEED ?= 1
TIMES ?= 4
SCENARIOS := $(filter-out scenarios/job.yaml,$(sort $(wildcard scenarios/*.yaml)))

soak: install
	$(BIN)/trimtab chaos $(SCENARIOS) --seed $(SEED) --times $(TIMES)

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
