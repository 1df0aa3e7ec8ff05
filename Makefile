# `make demo` and `make test` set up whatever they need first.

PYTHON_BIN := .venv/bin/python

.PHONY: help demo test law lint bench clean

help:
	@echo "make demo    set up, then run the main story on real flights"
	@echo "make test    set up, then run all tests"
	@echo "make law     set up, then compare 2,000 views and 2,000 queries with their plain queries, and twice 2,000 that share with each alone"
	@echo "make lint    set up, then check style, types and import rules"
	@echo "make bench   set up, then run the benchmarks"
	@echo "make clean   remove the environment and all caches"

.venv/ready: pyproject.toml scripts/setup
	@scripts/setup

demo: .venv/ready
	@.venv/bin/millstream demo

test: .venv/ready
	@scripts/test $(PYTHON_BIN)

law: .venv/ready
	@$(PYTHON_BIN) -m pytest tests/law --cases 2000 --inserts 45 --planted -o faulthandler_timeout=0
	@MILLSTREAM_LAW_CASES=2000 $(PYTHON_BIN) -m pytest tests/unit/test_shared_law.py tests/unit/test_scheduled_joins.py -o faulthandler_timeout=0

lint: .venv/ready
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-cache

bench: .venv/ready
	@.venv/bin/millstream bench ingest

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build src/*.egg-info
