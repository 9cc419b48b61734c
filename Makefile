# MetaQ for Spark. Every target that needs an environment makes it: .venv, once, and again when pyproject.toml changes.
# Needs make, Python 3.11 or newer and, for what runs Spark, Java 17 or newer; scripts/check-machine says what is missing.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INPUT ?=
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench wheel clean java

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: java $(READY)  ## Send lines through the broker and Spark and check every byte; INPUT=file-or-folder for your own
	@$(BIN)/python jobs/demo.py $(if $(INPUT),"$(INPUT)")

test: java $(READY)  ## Run all tests; PYTEST_ARGS='-m "not spark"' leaves out those that start Spark
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(READY)  ## Check style (ruff) and types (mypy)
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: java $(READY)  ## Run the benchmarks; each prints its own ceiling beside its figure
	@for program in $$(grep -l __main__ benchmarks/*.py); do echo; echo "== $$program"; $(BIN)/python $$program || exit 1; done

wheel: $(READY)  ## Build dist/*.whl and dist/*.tar.gz
	@$(BIN)/python -m build

clean:  ## Remove the environment and everything that was built
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@scripts/check-machine java

$(READY): pyproject.toml
	@scripts/set-up $(VENV) $(READY)

.PHONY: torture
torture: $(READY)  ## Try to make the broker lose a message; TORTURE_ARGS='--rounds 20 --seed 7', see docs/testing.md
	@$(BIN)/python -m torture $(TORTURE_ARGS)
	@$(BIN)/python -m torture.fuzz $(FUZZ_ARGS)
