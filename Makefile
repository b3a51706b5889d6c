PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two workers that each compute on one thread: more only get in each other's way on two cores.
WORKERS ?= 2

# A copy with its own library, built for this processor alone and checked at every access.
SANITIZED := build/sanitized
SANITIZERS := -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all
TESTED := tests/kernels tests/decoding tests/models/test_native_carry.py \
	tests/models/test_unrolled.py tests/models/test_cells.py tests/models/test_recurrent.py \
	tests/models/test_transformer.py tests/training/test_surprise.py

.PHONY: help setup demo test check format sanitize bench clean

help:
	@echo "make setup    create .venv with everything below needs"
	@echo "make demo     learn to translate, with and without attention, and draw where it looks"
	@echo "make test     run the tests; a few of them: make test ARGS='-k sparsemax';"
	@echo "              every case rather than a sample: make test ARGS=--thorough"
	@echo "make check    what CI does: format, lint, types, tests, the README's commands"
	@echo "make format   put the code in order"
	@echo "make sanitize run the tests of the C files under AddressSanitizer and UBSan"
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

sanitize: setup
	rm -rf $(SANITIZED)
	mkdir -p $(SANITIZED)
	cp -R heed tests setup.py pyproject.toml README.md LICENSE $(SANITIZED)
	cd $(SANITIZED) && $(CC) -std=gnu11 -O1 -g -march=native -fPIC -shared -fwrapv -fno-math-errno \
		-fno-trapping-math $(SANITIZERS) -DHEED_LEVEL=baseline -DHEED_LEVELS=1 -Iheed \
		heed/kernels/native.c heed/kernels/*/native.c -lm -o heed/kernels/libheed.so
	cd $(SANITIZED) && OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/$(SANITIZED) \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
		LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
		$(CURDIR)/$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal \
		--thorough -k "not triton and not compile" $(or $(ARGS),$(TESTED))

bench: setup
	@for file in $(wildcard benchmarks/[a-z]*.py); do \
		echo "$$file"; $(BIN)/python $$file || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
