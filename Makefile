PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two workers that each compute on one thread: more only get in each other's way on two cores.
WORKERS ?= 2

.PHONY: help setup demo test check format bench clean

help:
	@echo "make setup    create .venv with everything below needs"
	@echo "make demo     learn to translate, with and without attention, and draw where it looks"
	@echo "make test     run the tests; a few of them: make test ARGS='-k sparsemax'"
	@echo "make check    what CI does: format, lint, types, tests, the README's commands"
	@echo "make format   put the code in order"
	@echo "make bench    measure time and memory against the alternatives"
	@echo "make clean    remove .venv and everything generated"

setup: $(READY)

$(READY): pyproject.toml setup.py constraints.txt $(wildcard heed/kernels/native.[ch] heed/kernels/*/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): a few minutes, once"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/heed demo

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test
	$(BIN)/heed list mechanisms
	$(BIN)/heed demo

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	@for file in $(wildcard benchmarks/[a-z]*.py); do \
		echo "$$file"; $(BIN)/python $$file || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
