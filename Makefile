# make demo   sweep the bundled recordings, pick a policy, run it for real, compare with the replay
# make test   the whole suite, compiled and then once more with numba interpreted
# make gpu    train, record, measure and run on this machine's card (lab; see real/campaign.py)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test gpu lint clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet -e '.[real,dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/simspec demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n 2 -m interpreted

# on a machine whose Python already has the libraries and a card, nothing is installed
gpu:
	$(or $(GPU_PYTHON),$(PYTHON)) -m real.campaign $(GPU_ARGS)

clean:
	rm -rf $(VENV) build *.egg-info
