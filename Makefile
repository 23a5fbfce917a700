# Each target installs what it needs. `make help` lists the targets.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

NODES ?= auto
# Debian's Python 3.11, which the embedded cluster's pods run, is the oldest supported patch release,
# and its optimized build needs a third less CPU time than the default build of pyenv.
PYTHON ?= $(or $(wildcard /usr/bin/python3.11),python3)
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)
export PYTHONUNBUFFERED := 1
# With this variable, `python -m` would not find the modules of the checkout.
unexport PYTHONSAFEPATH
PURGE_OPTION = $(if $(filter-out 0 1,$(PURGE))$(word 2,$(PURGE)),$(error PURGE is '$(PURGE)': use \
  PURGE=1 to delete checkpoints and the stack's state),$(patsubst 1,--purge,$(filter 1,$(PURGE))))

## up [NODES=real|simulated] [SIMULATED_NODES=n]: start the cluster, deploy, train, serve and predict
.PHONY: up
up: $(VENV)/devcluster.stamp
	@python -m devcluster deploy --nodes $(NODES) $(if $(SIMULATED_NODES),--simulated-nodes $(SIMULATED_NODES))

## down [PURGE=1]: stop the cluster; PURGE=1 also deletes checkpoints and the stack's state
.PHONY: down
down: $(VENV)/devcluster.stamp
	@python -m devcluster down --nodes $(NODES) $(PURGE_OPTION)

## status: show the runs of the embedded cluster and the reasons why jobs wait
.PHONY: status
status: $(VENV)/devcluster.stamp
	@python -m devcluster status --nodes $(NODES)

## env: print shell exports for pulumi, kubectl and docker; use: eval "$(make env)"
.PHONY: env
env: $(VENV)/devcluster.stamp
	@python -m devcluster env --nodes $(NODES)

## logs: list the log files of the cluster's processes
.PHONY: logs
logs: $(VENV)/devcluster.stamp
	@python -m devcluster logs --nodes $(NODES)

## test [TIER=unit|engine|cluster|slow|operators] [PYTEST_ARGS=...]: run one tier; default: unit, engine and cluster
.PHONY: test
test: $(VENV)/dev.stamp
	@tests/run.sh "$(TIER)" $(PYTEST_ARGS)

## test-attacks [ATTACK=text] [LISTENER=name]: attack the model server while other clients use it
.PHONY: test-attacks
test-attacks: $(VENV)/dev.stamp
	@ATTACK="$(ATTACK)" LISTENER="$(LISTENER)" python -m tests.attacks

## test-losses: count lost requests while workers, models and servers are replaced
.PHONY: test-losses
test-losses: $(VENV)/dev.stamp
	@python -m tests.losses

## test-faults [PYTEST_ARGS=...]: inject every fault on real nodes; writes .bench/faults.*
.PHONY: test-faults
test-faults: $(VENV)/dev.stamp
	@python -m pytest -m faults tests/faults $(PYTEST_ARGS)

## test-soak [SOAK_MINUTES=20]: run jobs continuously next to inference; writes .bench/soak.*
.PHONY: test-soak
test-soak: $(VENV)/dev.stamp
	@python -m tests.soak

## check: lint, and check format, strict types, import contracts and generated files
.PHONY: check
check: $(VENV)/dev.stamp
	@ruff check . && ruff format --check . && mypy && lint-imports --no-cache && \
	  python -m tools.generate --check

## generate: write the files that are generated from the code: reference pages, tables, schema
.PHONY: generate
generate: $(VENV)/dev.stamp
	@python -m tools.generate

## requirements: pin the requirements again after editing requirements/*.in
.PHONY: requirements
requirements: $(VENV)/dev.stamp
	@requirements/compile.sh

## clean: delete the environment and the tools' caches in the checkout
.PHONY: clean
clean:
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

## help: list the targets
.PHONY: help
help:
	@echo "Targets:"; sed -n 's/^## \([^:]*\): /  make \1\n      /p' Makefile

# The environment: uv from its pinned wheel, then everything else with uv. `make up` does not need
# torch; the tests need everything. If the environment's Python was removed, for example by an
# upgrade of the system, the environment is created again.
.PHONY: python-removed
$(VENV)/uv.stamp: requirements/uv.txt $(if $(realpath $(VENV)/bin/python),,python-removed)
	@requirements/environment.sh $(PYTHON) $(VENV)
	@touch $@

$(VENV)/devcluster.stamp: $(VENV)/uv.stamp requirements/devcluster.txt
	@uv pip install --quiet --python $(VENV) --require-hashes -r requirements/devcluster.txt
	@touch $@

$(VENV)/dev.stamp: $(VENV)/devcluster.stamp requirements/dev.txt
	@uv pip install --quiet --python $(VENV) --require-hashes --compile-bytecode \
	  -r requirements/dev.txt
	@touch $@

## bench-policies: measure the policy pack with 1,000 workloads; writes .bench/policies.json
.PHONY: bench-policies
bench-policies: $(VENV)/dev.stamp
	@python -m tools.bench.policies

## bench-gitops: compare the preview report with `pulumi preview`; writes .bench/gitops.json
.PHONY: bench-gitops
bench-gitops: $(VENV)/dev.stamp
	@python -m tools.bench.gitops

## bench-inference [BENCH_ARGS=...]: compare our server with five others; writes .bench/inference.*
.PHONY: bench-inference
bench-inference: $(VENV)/dev.stamp requirements/bench.txt
	@uv pip install --quiet --python $(VENV) --require-hashes -r requirements/bench.txt
	@python -m tools.bench.inference $(BENCH_ARGS)

## bench-training: compare training with a plain loop, Fabric and Accelerate; writes .bench/training.json
.PHONY: bench-training
bench-training: $(VENV)/dev.stamp requirements/bench.txt
	@uv pip install --quiet --python $(VENV) --require-hashes -r requirements/bench.txt
	@python -m tools.bench.training

## bench-gpu [BENCH_ARGS="--part paths"]: run all GPU code paths and measure MFU; writes .bench/gpu.json
.PHONY: bench-gpu
bench-gpu: $(VENV)/dev.stamp requirements/bench.txt
	@uv pip install --quiet --python $(VENV) --require-hashes -r requirements/bench.txt
	@python -m tools.bench.gpu $(BENCH_ARGS)

## bench-preflight [BENCH_ARGS=...]: measure how reliably the preflight check finds slow nodes; writes .bench/preflight.json
.PHONY: bench-preflight
bench-preflight: $(VENV)/dev.stamp
	@python -m tools.bench.preflight $(BENCH_ARGS)

## bench-ranks: measure resources per rank in gangs of 4 and 16; writes .bench/ranks.json
.PHONY: bench-ranks
bench-ranks: $(VENV)/dev.stamp
	@python -m tools.bench.ranks

## bench-scale [BENCH_ARGS=--small]: measure 1,000 nodes and 1,000 jobs; writes .bench/scale.json
.PHONY: bench-scale
bench-scale: $(VENV)/dev.stamp
	@python -m tools.bench.scale $(BENCH_ARGS)

## bench-simulation [BENCH_ARGS=...]: compare simulations; writes .bench/simulation.json
.PHONY: bench-simulation
bench-simulation: $(VENV)/dev.stamp
	@python -m tools.bench.simulation $(BENCH_ARGS)

## bench-sweeps: compare sweeps with random search; writes .bench/sweeps.json
.PHONY: bench-sweeps
bench-sweeps: $(VENV)/dev.stamp
	@python -m tools.bench.sweeps

## bench-mutants [BENCH_ARGS="--target training"]: measure the share of mutants that tests kill; writes .bench/
.PHONY: bench-mutants
bench-mutants: $(VENV)/dev.stamp
	@python -m tools.bench.mutants $(BENCH_ARGS)
