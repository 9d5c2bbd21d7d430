# Two commands do everything on a fresh machine with Python >= 3.11 and make: `make demo` and `make test`.

PYTHON ?= $(shell for p in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && { echo $$p; break; }; done)
UV := uv==0.13.8
BIN := .venv/bin
READY := .venv/.ready
PREPARED := .venv/.prepared
BUILD := .cache/build
export DAGSTER_DISABLE_TELEMETRY := 1
# Companies put their own authority into the system store; uv would not look there by itself.
export UV_SYSTEM_CERTS := 1
# Without stored bytecode each of the many processes that a test starts compiles Dagster and PySpark anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test nightly deploy-check unit lint types format lock sbom wheel dist lowest highest conformance interop ui simulate simulate-mutants audit hostile spec \
	chaos soak production cluster lakehouse lakehouse-beside screenshots reference docs shape bench-emulator bench-leader bench-failover bench-worker bench-decoding bench-cost bench-transforms bench-start bench-merges bench-latency bench-tracing bench-scale bench-backlog bench-deploy clean

help:  ## this list
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed -E -e 's/^bench-[a-z -]+:/bench-NAME:/' -e 's/^([A-Za-z-]+):.*## /\1\t/' | expand -t 20

define find_python
@test -n "$(PYTHON)" || { echo "kcl_dagster needs Python 3.11, 3.12, 3.13 or 3.14: install one, or say PYTHON=/path/to/python"; exit 1; }
@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install its venv package (Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }
endef

setup: $(READY)  ## create .venv from the lock file (the other targets do it by themselves)

$(READY): requirements.lock pyproject.toml
	$(find_python)
	@echo "setting up .venv (once; about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV)
	@$(BIN)/uv pip install --quiet --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# Without the archive, which some kinds of Java cannot make, Spark starts as well, more slowly.
$(PREPARED): $(READY)
	@$(BIN)/kcl-dagster prepare || true
	@touch $@

demo: $(READY) $(PREPARED)  ## the pipeline on embedded AWS, with Dagster's UI; FOR=90s runs that long and ends with a verdict
	@exec $(BIN)/python -m demo $(if $(FOR),--for $(FOR)) $(if $(PORT),--port $(PORT))

# On two cores: a test waits now and then, and while one process waits, the others use the cores.
SIDE_BY_SIDE := -n 3 --dist loadgroup

test: $(READY)  ## the test suite; `make nightly` runs the tests that it leaves out
	@$(BIN)/python -m pytest $(if $(CI),,--color=yes) $(SIDE_BY_SIDE) -q $(ARGS)

nightly: $(READY)  ## the tests that `make test` leaves out: comparisons, full matrices, long runs under faults, many seeds
	@$(BIN)/python -m pytest $(if $(CI),,--color=yes) $(SIDE_BY_SIDE) -q -m nightly $(ARGS)

# One run end to end, and each kind of sink with Spark.
END_TO_END := tests/acceptance/test_demo.py tests/integration/spark/test_chains.py
BOUNDS := .cache/bounds

lowest highest: %: $(READY)  ## unit tests and a run end to end with the lowest, or highest, versions that pyproject.toml allows
	@mkdir -p $(BOUNDS)
	@$(BIN)/uv pip compile --quiet --python $(BIN)/python --all-extras --no-header --no-annotate --upgrade \
		$(if $(filter lowest,$*),--no-deps --resolution lowest-direct,--group test) pyproject.toml -o $(BOUNDS)/$*.txt
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(BOUNDS)/$*
	@$(BIN)/uv pip install --quiet --python $(BOUNDS)/$*/bin/python --constraint $(BOUNDS)/$*.txt --group test \
		-e '.[connect,delta,emulator,iceberg,java,otel]'
	@cat $(BOUNDS)/$*.txt
	@$(BOUNDS)/$*/bin/python -m pytest $(if $(CI),,--color=yes) $(SIDE_BY_SIDE) -q $(or $(ARGS),tests/unit $(END_TO_END))

unit: $(READY)  ## the fast tests: those of tests/unit that start nothing and are not marked as slow
	@$(BIN)/python -m pytest $(if $(CI),,--color=yes) -n 2 --dist loadfile -q -m "not nightly and not slow and not server and not spark" tests/unit $(ARGS)

lint: $(READY)  ## ruff, lint and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)  ## mypy, strict, over package and tests
	@$(BIN)/mypy

format: $(READY)  ## let ruff repair what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-header --no-annotate

lock: $(READY)  ## resolve the dependencies again: requirements.lock for development, -runtime.lock for images, -build.lock for the wheel
	@$(COMPILE) --all-extras --upgrade --group dev pyproject.toml -o requirements.lock
	@$(COMPILE) --all-extras --constraint requirements.lock pyproject.toml -o requirements-runtime.lock
	@$(COMPILE) --constraint requirements.lock --group build -o requirements-build.lock

# A copy of pyproject.toml with the version, which the build otherwise takes from the package: cyclonedx reads it there.
SBOM := .cache/sbom

sbom: $(READY)  ## dist/sbom.json: the packages of an image with all extras, in CycloneDX
	@mkdir -p dist $(SBOM)
	@sed 's/^dynamic = \["version", /version = "$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' kcl_dagster/__init__.py)"\ndynamic = [/' pyproject.toml > $(SBOM)/pyproject.toml
	@$(BIN)/uv tool run --quiet --from 'cyclonedx-bom>=7,<8' cyclonedx-py requirements --pyproject $(SBOM)/pyproject.toml \
		--output-file dist/sbom.json requirements-runtime.lock
	@ls dist/sbom.json

# Of its own: a wheel of 1 MB needs hatchling, and none of the 1.5 GB of the development environment.
$(BUILD)/.ready: requirements-build.lock
	$(find_python)
	@$(PYTHON) -m venv --clear $(BUILD)
	@$(BUILD)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-build.lock
	@touch $@

# The date of the commit is that of each file in an archive, so that who builds the same commit gets the same bytes.
COMMITTED := $(shell git log -1 --format=%ct 2>/dev/null)
HATCHLING := $(if $(COMMITTED),SOURCE_DATE_EPOCH=$(COMMITTED)) $(BUILD)/bin/python -m hatchling build -d dist

wheel: $(BUILD)/.ready  ## build dist/kcl_dagster-*.whl, in an environment of its own (seconds)
	@$(HATCHLING) -t wheel > $(BUILD)/log || { cat $(BUILD)/log; exit 1; }
	@ls dist/*.whl

dist: $(BUILD)/.ready  ## the files of a release: wheel and source archive, with the same bytes on every machine
	@$(HATCHLING) -t wheel -t sdist > $(BUILD)/log || { cat $(BUILD)/log; exit 1; }
	@sha256sum dist/*.whl dist/*.tar.gz

conformance: $(READY)  ## KCL conformance cases: FILE=path.json
	@$(BIN)/python -m tests.conformance $(or $(FILE),tests/data/kcl/vectors.json)

interop: $(READY)  ## tests beside the real Java KCL (needs Java; Maven for KCL 3.5)
	@$(BIN)/python -m pytest -q -s -p no:xdist -m interop tests/interop $(ARGS)

ui: $(READY)  ## the tests of the UI in a real browser (needs Chromium)
	@$(BIN)/python -m pytest -q -p no:xdist -m browser tests/acceptance $(ARGS)

simulate: $(READY)  ## simulated fleets under faults: SEEDS=1-200; in chains: SEEDS=40000-40199; into two tables: SEEDS=42000-42199
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),1-200) $(ARGS)

simulate-mutants: $(READY)  ## plant bugs, and count the seeds until each is found
	@$(BIN)/python -m tests.simulation.mutants $(ARGS)

audit: $(READY)  ## the tests of every audited defect, one line per row: ROWS="B4 D7"
	@$(BIN)/python -m tests.audit $(ROWS)

hostile: $(READY)  ## search for records whose cost is out of proportion to their size: SEEDS=1-8 ARGS="--evaluations 300"
	@$(BIN)/python -m tests.hostile --seeds $(or $(SEEDS),1-4) $(ARGS)

spec: $(READY)  ## model-check the protocol
	@$(BIN)/python -m spec $(ARGS)

chaos: $(READY)  ## real processes, real Spark, faults: SEED=1 MINUTES=2
	@$(BIN)/python -m tests.chaos --seed $(or $(SEED),1) --minutes $(or $(MINUTES),2) $(ARGS)

soak: $(READY)  ## separate processes and PostgreSQL, which is stopped twice: SEED=1 MINUTES=30 (needs PostgreSQL)
	@$(BIN)/python -m tests.soak --seed $(or $(SEED),1) --minutes $(or $(MINUTES),30) $(ARGS)

production: $(READY) $(PREPARED)  ## each part of a deployment killed and upgraded: DAEMON_AWAY=60 DATABASE_AWAY=45 (needs PostgreSQL)
	@$(BIN)/python -m tests.production $(if $(DAEMON_AWAY),--daemon-away $(DAEMON_AWAY)) \
		$(if $(DATABASE_AWAY),--database-away $(DATABASE_AWAY)) $(ARGS)

lakehouse: $(READY)  ## sinks, catalogs and operations against real servers and Spark: a table (needs Java, Maven): ARGS="--only create"
	@$(BIN)/python -m tests.lakehouse $(ARGS)

lakehouse-beside: $(READY)  ## consumers into Iceberg and Delta, while another engine compacts and expires: MINUTES=30 (needs Java, Maven)
	@$(BIN)/python -m tests.lakehouse.beside --minutes $(or $(MINUTES),30) $(ARGS)

cluster: $(READY)  ## Spark, the driver and AWS on machines in network namespaces, some of which are lost: ARGS="--only connect"
	@$(BIN)/python -m tests.cluster $(ARGS)

screenshots: $(READY)  ## pictures of the real UI for README and docs (needs Chromium)
	@$(BIN)/python -m docs.screenshots $(ARGS)

reference: $(READY)  ## docs/reference and deploy/ from the code
	@$(BIN)/python -m docs.make_reference $(ARGS)
	@$(BIN)/python -m docs.make_deploy

shape: $(READY)  ## the size and regularity of the code, with their limits: ARGS=--all
	@$(BIN)/python -m tests.shape $(ARGS)

deploy-check: $(READY)  ## render and validate every file of deploy/, and the project that `kcl-dagster init` writes
	@$(BIN)/python -m pytest -q -p no:xdist -m "nightly or not nightly" tests/deploy $(ARGS)

docs: $(READY)  ## dist/site: docs/ as a site, with search and a menu of versions
	@$(BIN)/python -m docs.site $(ARGS)

bench-start bench-deploy: $(PREPARED)

bench-emulator bench-leader bench-failover bench-worker bench-decoding bench-cost bench-transforms bench-start bench-merges bench-latency bench-tracing bench-scale bench-backlog bench-deploy: bench-%: $(READY)  ## measure NAME (emulator, leader, failover, worker, decoding, cost, transforms, start, merges, latency, tracing, scale, backlog, deploy): a table and one JSON line per figure
	@$(BIN)/python -m benchmarks.$* $(ARGS)

clean:  ## remove everything that was set up or produced
	rm -rf .venv .cache .demo dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .tmp_dagster_home_*
