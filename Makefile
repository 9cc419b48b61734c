# MetaQ for Spark. Every target that needs an environment makes it: .venv, once, and again when pyproject.toml changes
# or the clone has moved.
# Needs make and Python 3.11 or newer; scripts/check-machine says what is missing. What runs Spark uses a Java 17 or newer of the
# machine, or fetches one: scripts/with-java.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INPUT ?=
PROTOCOL ?=
DASHBOARD ?=
RESULTS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=
SUITES ?=
SEEDS ?= 1000
FIRST ?= 0
TRACE ?=
SUITES_ARGS ?=

# A Python of the environment, with a Java beside it.
SPARK_PYTHON = scripts/with-java $(VENV) $(BIN)/python

# Tests start hundreds of Python processes: with this variable, as some containers have it, each compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo cluster-demo test test-fast test-rocketmq lint bench bench-check wheel clean java

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: java $(READY)  ## Send lines through the broker and Spark and check every byte; INPUT=file-or-folder, PROTOCOL=rocketmq, DASHBOARD=1
	@$(SPARK_PYTHON) jobs/demo.py $(if $(PROTOCOL),--protocol $(PROTOCOL)) $(if $(DASHBOARD),--dashboard) $(if $(INPUT),"$(INPUT)")

cluster-demo: java $(READY)  ## The same on a whole cluster of this machine, with a broker killed in the middle
	@$(SPARK_PYTHON) jobs/cluster_demo.py

test: java $(READY)  ## Run the tests, ten minutes; PYTEST_ARGS='-m "not spark"' leaves out those that start Spark
	@scripts/with-java $(VENV) scripts/archive-spark $(VENV)
	@$(SPARK_PYTHON) -m pytest $(PYTEST_ARGS)

.PHONY: test-long
test-long: java $(READY)  ## Run what make test leaves out: tests marked long, and all cases of those that try fewer there
	@scripts/with-java $(VENV) scripts/archive-spark $(VENV)
	@METAQ_LONG_TESTS=1 $(SPARK_PYTHON) -m pytest -m long $(PYTEST_ARGS)

test-fast: $(READY)  ## Run the tests that start no process and no Spark, about a minute
	@METAQ_FAST_TESTS=1 $(BIN)/python -m pytest -m "not spark and not process and not slow" -o tmp_path_retention_policy=failed $(PYTEST_ARGS)

lint: $(READY)  ## Check style (ruff) and types (mypy)
	@$(BIN)/ruff check .
	@$(BIN)/mypy

.PHONY: test-databases
test-databases: java $(READY)  ## Run the tests of stored offsets with real PostgreSQL, MariaDB and MySQL, where they can be had: docs/testing.md
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[databases]"
	@METAQ_DATABASES=1 $(SPARK_PYTHON) -m pytest --numprocesses 0 tests/databases $(PYTEST_ARGS)

test-rocketmq: java $(READY)  ## Run the tests with real RocketMQ 4.9.7 and 5.5.0, fetched with Maven: docs/testing.md
	@METAQ_ROCKETMQ=$${METAQ_ROCKETMQ:-1} $(SPARK_PYTHON) -m pytest --numprocesses 0 tests/rocketmq tests/rocketmq_broker $(PYTEST_ARGS)

.PHONY: test-spark-versions
test-spark-versions: java $(READY)  ## Run the connector's tests with Spark 4.0, 4.1, 4.2 and 4.3, fetched once, an hour: docs/testing.md
	@scripts/with-java $(VENV) scripts/test-spark-versions $(VENV) $(PYTEST_ARGS)

.PHONY: test-java
test-java: java $(READY)  ## Run the tests with a real Java MetaQ broker and client, fetched with Maven, two minutes: docs/testing.md
	@$(SPARK_PYTHON) -m peers.metaq.broker $(SPARK_PYTHON) -m pytest --numprocesses 0 tests/java $(PYTEST_ARGS)

.PHONY: test-peer-suites
test-peer-suites: java $(READY)  ## Run the peers' own suites, compiled in SUITES=folder, on the originals and on ours: docs/testing.md
	@SUITES="$(SUITES)" $(SPARK_PYTHON) -m peers.suites $(SUITES_ARGS)

.PHONY: site
site: $(READY)  ## Build the documentation as a site with search in build/site, every link checked
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[site]"
	@$(BIN)/python site/pages.py build/site-pages
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=site $(BIN)/mkdocs build --quiet -f site/mkdocs.yml
	@echo "build/site/index.html"

.PHONY: check-deploy
check-deploy: $(READY)  ## Check the files in deploy/ with hadolint, yamllint, systemd-analyze and the schemas of Kubernetes
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[deploy]"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest --numprocesses 0 tests/deploy $(PYTEST_ARGS)

.PHONY: test-pipe
test-pipe: $(READY)  ## Send a million lines through metaq produce and metaq consume, with both protocols, two minutes: docs/testing.md
	@METAQ_PIPE_LINES=1000000 $(BIN)/python -m pytest --numprocesses 0 tests/metaq/cli/test_pipe.py $(PYTEST_ARGS)

.PHONY: test-browser
test-browser: $(READY)  ## Open and use every page of the dashboard in a real Chromium, five minutes; needs `chromium`: docs/testing.md
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[browser]"
	@$(BIN)/python -m pytest --numprocesses 0 -m browser tests/console/pages $(PYTEST_ARGS)

bench: java $(READY)  ## Measure speed beside ceilings, twelve minutes: tables, figures and a plot in bench/; BENCH_ARGS: docs/performance.md
	@$(SPARK_PYTHON) benchmarks/suite.py $(BENCH_ARGS)

bench-check: java $(READY)  ## The same, or RESULTS=file, and fail where a ratio is worse than the recorded one
	@$(SPARK_PYTHON) benchmarks/check.py $(RESULTS)

.PHONY: reference
reference: $(READY)  ## Write the tables of docs/ that are made from rows of the code: options, columns, keys, commands
	@PYTHONPATH=. $(BIN)/python tests/support/reference.py

wheel: $(READY)  ## Build dist/*.whl and dist/*.tar.gz
	@$(BIN)/python -m build

clean:  ## Remove the environment and everything that was built
	rm -rf $(VENV) $(VENV)-spark-* dist build bench .pytest_cache .ruff_cache .mypy_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@[ -z "$$JAVA_HOME" ] || scripts/check-machine java

# The mark has the path of the clone that the environment was made for.
ifneq ($(shell [ -x $(BIN)/python ] && cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif
$(READY): pyproject.toml
	@scripts/set-up $(VENV) $(READY)

.PHONY: simulate
simulate: $(READY)  ## Run histories of a pair that elects its master, in memory: SEEDS=1000, FIRST=0, TRACE=seed; docs/testing.md
	@$(BIN)/python -m faults.simulation --seeds $(SEEDS) --first $(FIRST) $(if $(TRACE),--trace $(TRACE))

.PHONY: faults
faults: java $(READY)  ## Try to make the broker and the sink break a promise; FAULTS_ARGS, FUZZ_ARGS, INTERRUPTED_ARGS, GROUPS_ARGS, EXACTLY_ONCE_ARGS, RESTARTS_ARGS, PUT_BACK_ARGS: docs/testing.md
	@$(SPARK_PYTHON) -m faults $(FAULTS_ARGS)
	@$(SPARK_PYTHON) -m faults.fuzz $(FUZZ_ARGS)
	@$(SPARK_PYTHON) -m faults.remoting_fuzz $(FUZZ_ARGS)
	@$(SPARK_PYTHON) -m faults.codec_fuzz $(FUZZ_ARGS)
	@$(SPARK_PYTHON) -m faults.interrupted_runs $(INTERRUPTED_ARGS)
	@$(SPARK_PYTHON) -m faults.groups --at zookeeper $(GROUPS_ARGS)
	@$(SPARK_PYTHON) -m faults.groups --at brokers $(GROUPS_ARGS)
	@$(SPARK_PYTHON) -m faults.exactly_once $(EXACTLY_ONCE_ARGS)
	@$(SPARK_PYTHON) -m faults.exactly_once --delivery at_least_once --kills 20
	@$(SPARK_PYTHON) -m faults.restarts $(RESTARTS_ARGS)
	@$(SPARK_PYTHON) -m faults.put_back $(PUT_BACK_ARGS)
