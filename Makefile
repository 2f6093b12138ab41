# Every target makes what it needs first; the second run finds it there.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
MADE := $(VENV)/.made
# Hundreds of interpreters start here: without bytecode on disk each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-kind e2e-engine test test-kind lint format generate lock clean

help: ## show what there is
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1|/' | column -t -s '|'

setup: $(MADE) ## make .venv from requirements.lock

$(MADE): requirements.lock pyproject.toml e2e/setup.sh
	@bash e2e/setup.sh

demo: $(MADE) ## serve a multi-node MoE on this machine and replace its revision under load (KEEP=1: leave it up)
	@$(BIN)/python -m e2e.scenarios $(if $(KEEP),--keep)

demo-kind: $(MADE) ## the same on a real Kubernetes: kind cluster, images, helm install, demo; it stays up
	@$(BIN)/python -m e2e.kind demo --bootstrap

e2e-engine: $(MADE) ## the real vLLM on CPU behind the product on kind (downloads about 4 GB once; docs/real-engine.md)
	@$(BIN)/python -m e2e.real_engine --bootstrap $(if $(KEEP),--keep)

test: $(MADE) ## everything that is checked before a change goes in (E2E=0: without the cluster)
	@$(BIN)/python -m tests.tiers

test-kind: $(MADE) ## all end-to-end tests on a real cluster, the long ones too
	@$(BIN)/python -m tests.tiers "cluster with chart" "contract on it" "kind, whole"

lint: $(MADE) ## style, types, layers, generated files
	@$(BIN)/python -m tests.tiers lint

format: $(MADE) ## put code into its canonical form
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format -q .

generate: $(MADE) ## rewrite the CRD, the API page, the chart's copies and manifests/install.yaml
	@$(BIN)/python -m moe_operator.api.generate
	@$(BIN)/python -m e2e.chart.generate

lock: ## resolve pyproject.toml anew into requirements.lock and the images' lock
	@uv pip compile -q --upgrade --universal --all-extras --generate-hashes --no-emit-index-url --no-header pyproject.toml -o requirements.lock
	@uv pip compile -q --upgrade --extra operator --constraint requirements.lock --python-version 3.13 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-emit-index-url --no-header pyproject.toml operator/images/build.in -o operator/images/requirements.lock
	@cd e2e/real_engine && uv pip compile -q --upgrade --overrides overrides.txt --python-version 3.11 --python-platform x86_64-manylinux_2_36 --generate-hashes --no-emit-index-url --no-header requirements.in -o requirements.lock

clean: ## remove what make made here
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
