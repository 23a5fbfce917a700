# Everything is done by `make` alone: it installs what it needs. `make help` tells the targets.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

NODES ?= auto
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)
export PYTHONUNBUFFERED := 1

## up [NODES=real|simulated] [SIMULATED_NODES=n]: cluster, stack, training, inference, a prediction
.PHONY: up
up: $(VENV)/devcluster.stamp
	@python -m devcluster deploy --nodes $(NODES) $(if $(SIMULATED_NODES),--simulated-nodes $(SIMULATED_NODES))

## down [PURGE=1]: end the cluster; PURGE=1 removes checkpoints and the stack's state as well
.PHONY: down
down: $(VENV)/devcluster.stamp
	@python -m devcluster down --nodes $(NODES) $(if $(PURGE),--purge)

## status: what runs on the embedded cluster, and why each pending job waits
.PHONY: status
status: $(VENV)/devcluster.stamp
	@python -m devcluster status --nodes $(NODES)

## env: print shell exports for pulumi, kubectl and docker; use it as: eval "$(make env)"
.PHONY: env
env: $(VENV)/devcluster.stamp
	@python -m devcluster env --nodes $(NODES)

## logs: where every process of the cluster logs
.PHONY: logs
logs: $(VENV)/devcluster.stamp
	@python -m devcluster logs --nodes $(NODES)

## test [TIER=unit|engine|cluster|operators] [PYTEST_ARGS=...]: all tiers but operators, or one
.PHONY: test
test: $(VENV)/dev.stamp
	@tests/run.sh "$(TIER)" $(PYTEST_ARGS)

## test-faults [PYTEST_ARGS=...]: every fault, on real nodes; writes .bench/faults.json, .md and .svg
.PHONY: test-faults
test-faults: $(VENV)/dev.stamp
	@python -m pytest -m faults tests/faults $(PYTEST_ARGS)

## test-soak [SOAK_MINUTES=20]: jobs come and go beside inference; writes .bench/soak.json and .svg
.PHONY: test-soak
test-soak: $(VENV)/dev.stamp
	@python -m tests.soak

## check: lint, format, strict types, import contracts and generated files
.PHONY: check
check: $(VENV)/dev.stamp
	@ruff check . && ruff format --check . && mypy && lint-imports --no-cache && \
	  python -m tools.generate --check

## generate: write everything that is generated from the code: reference pages, tables, schema
.PHONY: generate
generate: $(VENV)/dev.stamp
	@python -m tools.generate

## requirements: pin anew after requirements/*.in have been edited
.PHONY: requirements
requirements: $(VENV)/dev.stamp
	@requirements/compile.sh

## clean: remove the environment and the tools' caches in the checkout
.PHONY: clean
clean:
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

## help: this text
.PHONY: help
help:
	@echo "Targets:"; sed -n 's/^## \([^:]*\): /  make \1\n      /p' Makefile

# The environment: uv from its pinned wheel, then everything else by uv. What `make up` needs has
# no torch in it; tests need all of it.
$(VENV)/uv.stamp: requirements/uv.txt
	@requirements/environment.sh $(PYTHON) $(VENV)
	@touch $@

$(VENV)/devcluster.stamp: $(VENV)/uv.stamp requirements/devcluster.txt
	@uv pip install --quiet --python $(VENV) --require-hashes -r requirements/devcluster.txt
	@touch $@

$(VENV)/dev.stamp: $(VENV)/devcluster.stamp requirements/dev.txt
	@uv pip install --quiet --python $(VENV) --require-hashes --compile-bytecode \
	  -r requirements/dev.txt
	@touch $@

## bench-policies: what the policy pack costs over 1,000 workloads; writes .bench/policies.json
.PHONY: bench-policies
bench-policies: $(VENV)/dev.stamp
	@python -m tools.bench.policies

## bench-gitops: what the preview report costs beside `pulumi preview`; writes .bench/gitops.json
.PHONY: bench-gitops
bench-gitops: $(VENV)/dev.stamp
	@python -m tools.bench.gitops

## bench-inference [BENCH_ARGS=...]: our server beside five others; writes .bench/inference.json
.PHONY: bench-inference
bench-inference: $(VENV)/dev.stamp requirements/bench.txt
	@uv pip install --quiet --python $(VENV) --require-hashes -r requirements/bench.txt
	@python -m tools.bench.inference $(BENCH_ARGS)

## bench-training: training beside a loop by hand, Fabric and Accelerate; writes .bench/training.json
.PHONY: bench-training
bench-training: $(VENV)/dev.stamp requirements/bench.txt
	@uv pip install --quiet --python $(VENV) --require-hashes -r requirements/bench.txt
	@python -m tools.bench.training

## bench-scale [BENCH_ARGS=--small]: 1,000 nodes, updates of 1,000 jobs; writes .bench/scale.json
.PHONY: bench-scale
bench-scale: $(VENV)/dev.stamp
	@python -m tools.bench.scale $(BENCH_ARGS)

## bench-mutants [BENCH_ARGS=...]: share of mutants killed by unit tests; writes .bench/mutants.json
.PHONY: bench-mutants
bench-mutants: $(VENV)/dev.stamp
	@python -m tools.bench.mutants $(BENCH_ARGS)
