# Every command that a newcomer needs; `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
# The packages that hold modules: mypy refuses a folder without any.
PACKAGES := $(foreach package,zymogen data pretrain finetune,$(if $(wildcard $(package)/*.py),$(package)))

.DEFAULT_GOAL := help
.PHONY: help setup pretrain test test-engines test-slow test-rest prove chaos check format bench gpu gpu-learning clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: ## make .venv with the pinned versions (PYTHON=python3.12 picks the interpreter)
	@$(PYTHON) bootstrap.py

# One process per GPU that torch sees, at most as many as a step has bins; two where there is none.
COUNT = import torch; print(min(4, torch.cuda.device_count()) or 2)

# What ddp.yaml says. A GPU older than Ampere has no bfloat16: make pretrain PRECISION=fp16
PRECISION ?= bf16

pretrain: setup ## train on the embedded corpus with two processes, minutes on two CPU cores
	@processes=$$($(BIN)/python -c '$(COUNT)') && \
	$(BIN)/accelerate launch --config_file accelerate_configs/ddp.yaml --num_processes $$processes \
		--mixed_precision $(PRECISION) -m pretrain recipes/quickstart.toml

# What pytest rewrites for its asserts is kept: each of its processes would rewrite all tests again, which takes 10 s.
unexport PYTHONDONTWRITEBYTECODE
# Two processes that share the tests; those that share a run stay together.
PYTEST = $(BIN)/python -m pytest -n 2 --dist loadgroup

# Every test is in one of four tiers, by its marks; setup.cfg defines them. Rows of tests/machines that start a program,
# and tests that start other processes, such as data workers, are marked launch: they are in test-engines.
test: setup ## minutes: fast tests that do not start the program, and one run for each contract
	$(PYTEST) -m "canary or not (launch or slow or prove)"

test-engines: setup ## the other tests that start processes: every engine, README commands, rows of tests/machines
	$(PYTEST) -m "launch and not (canary or slow or prove)"

test-slow: setup ## the tests that take longest
	$(PYTEST) -m "slow and not (canary or prove)"

test-rest: setup ## test-engines and test-slow in one go: what both compare with is trained once
	$(PYTEST) -m '(launch or slow) and not (canary or prove)'

prove: setup ## before a release: every combination of engine, world and model, and deliberate breaks of every contract
	$(PYTEST) -m "prove and not canary"
	$(BIN)/python -m tests.support.mutations

# A ledger in runs/chaos keeps what was done: 10,000 kills may take several calls.
KILLS ?= 1000
SEED ?= 0
ENGINE ?= ddp
RANKS ?= 2 3

chaos: setup ## kill training KILLS times and compare each end with the uninterrupted run's, byte by byte
	PYTHONPATH=tests $(BIN)/python -m support.chaos --kills $(KILLS) --seed $(SEED) --engine $(ENGINE) --ranks $(RANKS)

check: setup ## lint, formatting, who imports whom, and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy --strict --num-workers 2 $(PACKAGES)

format: setup ## format the sources so that `make check` accepts them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## run the benchmarks that need neither a GPU nor a corpus, one after the other
	@for name in data engines communication memory model; do \
		echo "== $$name"; $(BIN)/python -m benchmarks.$$name || exit 1; \
	done

# With the machine's own Python, because `make setup` may be impossible there. Without a GPU it only shows that it runs.
gpu: ## check and measure everything on a GPU in under 8 minutes; needs torch and NumPy alone
	$(PYTHON) -m benchmarks.gpu --out gpu_results

gpu-learning: setup ## what our recipe gains at 8M, two runs of 10 minutes on GPUs, with PROTEINS=FILES; DRY=1: of 25 s on CPUs
	$(BIN)/python -m benchmarks.learning '$(PROTEINS)' --others $(if $(DRY),--size 800k --seconds 25,--size 8m --seconds 600) \
		--seeds 0 --folder runs/gpu_learning --arms "ours: modern, Muon, neighbours"

clean: ## remove .venv and the caches of tools; runs/ stays
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
