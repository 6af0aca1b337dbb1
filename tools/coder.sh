#!/usr/bin/env bash
# How traces/coder was made: BIN=.venv/bin tools/coder.sh STEP, or `make coder-STEP`: recordings, costs, run, compare of
# smollm2.sh, beams, eagle, engines.
#
# Recordings are float32: in bfloat16 a token depends on how many are written together. Costs and runs are bfloat16, the
# dtype that pays on a CPU. Recordings take two hours of two cores, alone.
set -euo pipefail
export MODELS=models/coder TRACES=traces/coder RULES="${RULES:-greedy coupled}"
export DRAFTERS="model prompt_lookup suffix $(grep -qs tokens models/coder/eagle/card.json && echo eagle)" # trained by `coder-eagle`
export PER_TASK=22 BUDGET=192 DEPTH=12 DTYPE="${DTYPE:-bfloat16}" NAMES="${NAMES:-greedy/model}"
export PROMPTS=24 TOKENS=24 RIVALS="--rival none --plot traces/coder/speedups.png" # an hour and a quarter, alone
export POLICIES="${POLICIES:-fixed:2 entropy confidence:0.8 adaedl two_thresholds beta_ts cali_ts:validated,predictor=confidence cost_ts}"
export RUN="--compare --rival none --policy fixed:2 --policy entropy --prompts 6 --budget 24 --repeats 2" # minutes, alone
if [ "$1" = engines ]; then # the 0.5B as the engines' own draft model, and with simspec's policies; an hour, alone
  export TARGET=$MODELS/target DRAFT=$MODELS/model RECORDING=$TRACES/greedy/model.parquet
  export LLAMACPP="--fast --model $MODELS/target.gguf" DRAFT_GGUF=$MODELS/model.gguf # in four bits
  export HOSTED="-k 0 -k 2 -k 3 -k 8 --policy entropy --policy confidence:0.8"
  export OWN_LLAMACPP="--policy confidence:0.8,inclusive=false"
  export OWN_TRANSFORMERS="--policy confidence:0.4 --policy confidence:0.8"
  engines=("$(dirname "$0")/engines.sh" "$BIN" $MODELS $TRACES/engines)
  FEW=16 PRICED=24 "${engines[@]}" vllm-model
  FEW=24 "${engines[@]}" hosted
  export FEW=12 LONGEST=4 LENGTHS="-k 0 -k 1 -k 2 -k 4"
  PRICED=4 "${engines[@]}" llamacpp-model
  PRICED=12 "${engines[@]}" transformers-model
  for engine in vllm llamacpp transformers; do
    texts=$MODELS/$engine-texts.jsonl
    "$BIN/python" - $TRACES/engines/$engine-*.rows.jsonl.xz > $texts << END # what it wrote without drafts
import json, sys
from pathlib import Path
from real.engines.rows import read_rows

rows = {row.request.id: row for path in sys.argv[1:] for row in read_rows(Path(path))[1] if not row.k}
for name, row in rows.items():
    print(json.dumps({"id": name, "prompt": row.request.prompt, "output": row.finished.tokens}))
END
    "$BIN/simspec" record --from-text $texts --drafter model:$DRAFT --dtype bfloat16 --threads 2 \
      --end-token 151645 --end-token 151643 --depth 8 --out $TRACES/engines/$engine-texts.parquet
  done
elif [ "$1" = eagle ]; then # a draft head, learned from fixed text as its authors do; an hour of two cores with AMX
  prompts=$TRACES/prompts.jsonl learn=$MODELS/learn
  [ -e $MODELS/prompts.jsonl ] || "$BIN/python" tools/cut_prompts.py "$DATA/eval" coder $prompts $MODELS/prompts.jsonl
  [ -e $learn/text.jsonl ] || "$BIN/python" tools/cut_text.py "$DATA" $prompts $learn
  "$BIN/simspec" train eagle $learn/text.jsonl --learn-text 150000 --prompts $MODELS/prompts.jsonl \
    --prompts $learn/chat.jsonl --longest 200 --distil-tokens 60000 --target $MODELS/target --dtype bfloat16 \
    --draft-vocab 8192 --set bias=false --set weight=0.1 --steps 285 --out $MODELS
  mkdir -p $TRACES/drafters
  cp $MODELS/eagle/card.json $TRACES/drafters/eagle.json
elif [ "$1" = beams ]; then # a beam search of the 0.5B at every position; ten minutes
  "$BIN/simspec" record $TRACES/prompts.jsonl --models $MODELS --drafter model --depth 5 --rule greedy --tree 4x5 \
    --budget 64 --per-task 5 --dtype bfloat16 --batch 30 --threads 2 --out $TRACES/beams/model.parquet
else
  if [[ $1 = costs && ! -e $MODELS/eagle ]]; then # seconds do not depend on values
    "$BIN/python" tools/untrained.py sizes $MODELS $TRACES/drafters/eagle.json
  fi
  "$(dirname "$0")/smollm2.sh" "$@"
fi
