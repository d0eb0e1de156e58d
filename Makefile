# Everything runs in a virtual environment of its own: `make demo` and `make test` need nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=# for pytest: make test ARGS=tests/index
JOBS ?= 2# processes that run tests, one core each

.PHONY: help install hooks demo browser test test-quick test-newest coverage lint format types docs wheel smoke smoke-sdist clean

help:  ## list what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-13s %s\n", $$1, $$2}'

install: $(STAMP)  ## make .venv with all that is needed

# torch comes first, alone: this takes a CPU build where pip knows one (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS).
install_torch = $(1)/python -m pip install --quiet --upgrade pip && { $(1)/python -c "import torch" 2>/dev/null \
	|| $(1)/python -m pip install --quiet torch==2.13.0 \
	|| $(1)/python -m pip install --quiet torch --index-url https://download.pytorch.org/whl/cpu; }

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): a minute or two"
	$(call install_torch,$(BIN))
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(STAMP)

hooks: $(STAMP)  ## run ruff and mypy before each commit
	$(BIN)/pre-commit install

demo: $(STAMP)  ## index sample documents with the embedded model, ask questions, tell how much smaller the index is
	$(BIN)/anchorfold demo

# The tests of the search page want a browser: Debian's if it can be had, else Playwright's own, else they skip.
browser: $(STAMP)
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
		|| { test "$$(id -u)" = 0 && apt-get install -y -qq chromium >/dev/null 2>&1; } \
		|| $(BIN)/playwright install chromium >/dev/null 2>&1 \
		|| echo "no browser found or installed: the tests of the search page will skip"

PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

test: $(STAMP) browser  ## run all tests
	$(PYTEST) $(ARGS)

test-quick: $(STAMP)  ## run the tests that are not marked slow
	$(PYTEST) -m "not slow" $(ARGS)

test-newest:  ## run all tests with the newest transformers, in .venv-newest
	$(MAKE) install browser VENV=.venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade transformers
	.venv-newest/bin/python -m pip show transformers | grep Version
	$(MAKE) test VENV=.venv-newest

coverage: $(STAMP) browser  ## run all tests, print which lines and branches none of them reaches
	$(PYTEST) --cov --cov-report=term $(ARGS)

lint: $(STAMP)  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## mend style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## check types
	$(BIN)/mypy

docs: $(STAMP)  ## build the documentation in build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: $(STAMP)  ## build the sdist, and the wheel from it, in dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist

smoke: wheel  ## install the wheel in an empty environment, run the demo in an empty folder
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; wheel="$$(ls $(CURDIR)/dist/*.whl)"; \
	echo "installing $$wheel into an empty environment"; \
	$(PYTHON) -m venv "$$folder/venv"; \
	$(call install_torch,"$$folder/venv/bin"); \
	"$$folder/venv/bin/python" -m pip install --quiet "$$wheel[demo]"; \
	mkdir "$$folder/empty"; cd "$$folder/empty"; \
	"$$folder/venv/bin/anchorfold" --version; \
	"$$folder/venv/bin/anchorfold" demo

# PYTHONPATH comes before the installed package: what is tested is what was unpacked.
smoke-sdist: wheel  ## unpack the sdist, import all of its tests, run the quick ones of the method
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	tar -xzf dist/*.tar.gz -C "$$folder" --strip-components 1; \
	python="$(abspath $(BIN))/python"; cd "$$folder"; export PYTHONPATH="$$folder/src"; \
	"$$python" -m pytest --collect-only -qq; \
	"$$python" -m pytest -m "not slow" tests/test_*.py

clean:  ## remove all that was made
	rm -rf $(VENV) .venv-newest dist build .coverage* .pytest_cache .ruff_cache .mypy_cache anchorfold-demo
