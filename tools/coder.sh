#!/usr/bin/env bash
# How traces/coder was made: BIN=.venv/bin tools/coder.sh STEP, or `make coder-STEP`: recordings, costs, run, compare of smollm2.sh, beams, engines.
#
# Recordings are float32: in bfloat16 a token depends on how many are written together. Costs and runs are bfloat16, the
# dtype that pays on a CPU. Recordings take two hours of two cores, alone.
set -euo pipefail
export MODELS=models/coder TRACES=traces/coder DRAFTERS="model prompt_lookup suffix" RULES="${RULES:-greedy coupled}"
export PER_TASK=22 BUDGET=192 DEPTH=12 DTYPE="${DTYPE:-bfloat16}" NAMES="${NAMES:-greedy/model}"
export PROMPTS=24 TOKENS=24 RIVALS="--rival none --plot traces/coder/speedups.png" # an hour and a quarter, alone
export POLICIES="${POLICIES:-fixed:2 entropy confidence:0.8 adaedl two_thresholds beta_ts cali_ts:validated,predictor=confidence cost_ts}"
export RUN="--compare --rival none --policy fixed:2 --policy entropy --prompts 6 --budget 24 --repeats 2" # minutes, alone
if [ "$1" = engines ]; then # the 0.5B in vLLM, as its own draft model and with simspec's policies; half an hour, alone
  export TARGET=$MODELS/target DRAFT=$MODELS/model RECORDING=$TRACES/greedy/model.parquet
  SEEING="-k 0 -k 2 --policy entropy --policy confidence:0.8" "$(dirname "$0")/engines.sh" \
    "$BIN" $MODELS $TRACES/engines vllm-model hosted
elif [ "$1" = beams ]; then # a beam search of the 0.5B at every position; ten minutes
  "$BIN/simspec" record $TRACES/prompts.jsonl --models $MODELS --drafter model --depth 5 --rule greedy --tree 4x5 \
    --budget 64 --per-task 5 --dtype bfloat16 --batch 30 --threads 2 --out $TRACES/beams/model.parquet
else
  "$(dirname "$0")/smollm2.sh" "$@"
fi
