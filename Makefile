# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv first, the demo with what it needs alone.
PYTHON ?= python3
BIN := .venv/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

.PHONY: demo test check lint types site browser torch-versions audit setup clean

demo: .venv/.demo
	$(BIN)/lbdrop demo

test: lint types browser
	$(BIN)/python -m pytest

check: test

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev
	$(BIN)/pyright

# Pages are tested in a real browser; it is Debian's, because a registry of Python packages has none.
browser:
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium >/dev/null) || \
		(echo "the tests want Chromium on the PATH as chromium: install it, then make test" && false)

site: .venv/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The oldest and the newest torch that pyproject.toml allows: two environments of 6 GB each, and half an hour of tests.
torch-versions: .venv/.dev
	$(BIN)/python -m benchmarks.torch_versions

# What is installed against the last audit of it, without a network.
audit: .venv/.dev
	$(BIN)/python -m benchmarks.audit --check

setup: .venv/.dev
	@echo "ready: .venv/bin/python, .venv/bin/lbdrop"

.venv/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing lbdrop into .venv (a minute or two the first time)"
	$(INSTALL) ".[demo]"
	touch $@

.venv/.dev: .venv/.demo
	@echo "installing what the tests need into .venv (a few minutes the first time)"
	$(INSTALL) ".[dev]"
	touch $@

clean:
	rm -rf .venv build *.egg-info
