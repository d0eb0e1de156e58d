# Everything runs in a virtual environment of its own: `make demo` and `make test` need nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo browser test lint format types install clean

install: $(STAMP)

# A CPU build of torch comes first: a loose requirement would pull gigabytes of CUDA libraries.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): a minute or two"
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install --quiet torch==2.13.0 \
		|| $(BIN)/python -m pip install --quiet torch --index-url https://download.pytorch.org/whl/cpu
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(STAMP)

# Indexes sample documents with the embedded model, asks questions, and tells how much smaller the index is.
demo: $(STAMP)
	$(BIN)/anchorfold demo

# The tests of the search page want a browser: Debian's if it can be had, else Playwright's own, else they skip.
browser: $(STAMP)
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
		|| { test "$$(id -u)" = 0 && apt-get install -y -qq chromium >/dev/null 2>&1; } \
		|| $(BIN)/playwright install chromium >/dev/null 2>&1 \
		|| echo "no browser found or installed: the tests of the search page will skip"

test: $(STAMP) browser
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)
	$(BIN)/mypy

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .mypy_cache anchorfold-demo
