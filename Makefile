# make demo   sweep the bundled recordings, pick a policy, run it for real, compare with the replay
# make test   the whole suite, compiled and then once more with numba interpreted
# make gpu    train, record, measure and run on this machine's card (lab; see real/campaign.py)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

CORE := rng trace cost policy policies simulate synthetic formulas metrics sweep

.PHONY: demo test gpu lint clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet -e '.[real,dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/simspec demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist worksteal
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(CORE:%=tests/test_%.py)

# What `make gpu` trains on and records: by default copied from a data folder beside the checkout. Ignored by git.
DATA ?= ../shared/data
SHARDS ?= 0 1 2
SETS := gsm8k_test humaneval mbpp_sanitized mt_bench qmsum_test mts_dialog_test tatqa_dev spider_dev
lab/.copied:
	mkdir -p lab/text lab/heldout lab/prompts
	cp $(SHARDS:%=$(DATA)/train-0000%.jsonl.xz) lab/text/
	cp $(DATA)/heldout-*.jsonl.xz lab/heldout/
	cp $(foreach s,$(SETS),$(DATA)/eval/$(s).jsonl) lab/prompts/
	touch $@

# On a machine whose Python already has the libraries and a card: nothing is installed. OUT: where results go.
OUT ?= out/gpu
gpu: lab/.copied
	$(PYTHON) -m real.campaign --text lab/text --out $(OUT) \
	  $$(printf -- '--heldout %s ' lab/heldout/*) $$(printf -- '--prompts %s ' lab/prompts/*) $(GPU_ARGS)

clean:
	rm -rf $(VENV) build *.egg-info
