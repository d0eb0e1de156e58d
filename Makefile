# Everything runs in a virtual environment: `make demo` and `make test` require only Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=# for pytest: make test ARGS=tests/indexes
JOBS ?= 2# test processes

.PHONY: help install hooks demo browser office test test-quick test-newest test-floors coverage lint format types docs wheel smoke smoke-sdist clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-13s %s\n", $$1, $$2}'

install: $(STAMP)  ## create .venv with all dependencies

# torch is installed first: pip prefers a CPU build if it knows one (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS).
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

demo: $(STAMP)  ## index sample documents with the embedded model, run queries, print the compression ratio
	$(BIN)/anchorfold demo

# Tests of the search page need a browser: Debian's if it can be installed, otherwise Playwright's. Without one they are skipped.
browser: $(STAMP)
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
		|| { test "$$(id -u)" = 0 && apt-get install -y -qq chromium >/dev/null 2>&1; } \
		|| $(BIN)/playwright install chromium >/dev/null 2>&1 \
		|| echo "no browser found or installed: the tests of the search page will skip"

FLOOR_TESTS = tests/core tests/attention tests/compressors tests/backbones tests/documents tests/filters tests/storage
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

# The tests of converted office files need LibreOffice: Debian's if it can be installed, else they skip.
office: $(STAMP)
	@command -v soffice >/dev/null || { test "$$(id -u)" = 0 \
		&& apt-get install -y -qq --no-install-recommends libreoffice-writer-nogui libreoffice-calc-nogui libreoffice-impress-nogui >/dev/null 2>&1; } \
		|| echo "LibreOffice is not installed: the tests of office files will skip"

test: $(STAMP) browser office  ## run all tests
	$(PYTEST) $(ARGS)

test-quick: $(STAMP)  ## run the tests that are not marked slow
	$(PYTEST) -m "not slow" $(ARGS)

test-newest:  ## run all tests with the newest transformers, in .venv-newest
	$(MAKE) install browser VENV=.venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade transformers
	.venv-newest/bin/python -m pip show transformers | grep Version
	$(MAKE) test VENV=.venv-newest

# Every `>=` of the dependencies as `==`. Python 3.11, for which the lowest versions have wheels.
test-floors:  ## run the model and storage tests with the lowest supported versions, in .venv-floors
	test -x .venv-floors/bin/python || $(PYTHON) -m venv .venv-floors
	.venv-floors/bin/python -c "import tomllib; \
		print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
		| sed 's/>=/==/; s/,.*//' > .venv-floors/constraints.txt
	cat .venv-floors/constraints.txt
	.venv-floors/bin/python -m pip install --quiet -c .venv-floors/constraints.txt $$(grep '^torch=' .venv-floors/constraints.txt)
	.venv-floors/bin/python -m pip install --quiet -c .venv-floors/constraints.txt \
		--editable ".[multivector,lora,ward,demo]" pytest pytest-xdist hypothesis
	OMP_NUM_THREADS=1 .venv-floors/bin/python -m pytest -n $(JOBS) $(FLOOR_TESTS)

coverage: $(STAMP) browser  ## run all tests, print lines and branches that are not covered
	$(PYTEST) --cov --cov-report=term $(ARGS)

lint: $(STAMP)  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## fix style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## check types
	$(BIN)/mypy

docs: $(STAMP)  ## build the documentation in build/site; dead links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: $(STAMP)  ## build the sdist, and the wheel from it, in dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist

smoke: wheel  ## install the wheel in a new environment and run the demo
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; wheel="$$(ls $(CURDIR)/dist/*.whl)"; \
	echo "installing $$wheel into an empty environment"; \
	$(PYTHON) -m venv "$$folder/venv"; \
	$(call install_torch,"$$folder/venv/bin"); \
	"$$folder/venv/bin/python" -m pip install --quiet "$$wheel[demo]"; \
	mkdir "$$folder/empty"; cd "$$folder/empty"; \
	"$$folder/venv/bin/anchorfold" --version; \
	"$$folder/venv/bin/anchorfold" demo

# PYTHONPATH precedes the installed package: the unpacked sources are tested.
smoke-sdist: wheel  ## unpack the sdist, collect all tests, run the quick ones in tests/
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	tar -xzf dist/*.tar.gz -C "$$folder" --strip-components 1; \
	python="$(abspath $(BIN))/python"; cd "$$folder"; export PYTHONPATH="$$folder/src"; \
	"$$python" -m pytest --collect-only -qq; \
	"$$python" -m pytest -m "not slow" tests/test_*.py

clean:  ## remove all generated files
	rm -rf $(VENV) .venv-newest .venv-floors dist build .coverage* .pytest_cache .ruff_cache .mypy_cache anchorfold-demo
