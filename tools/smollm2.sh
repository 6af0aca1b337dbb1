#!/usr/bin/env bash
# How traces/smollm2 was made: BIN=.venv/bin DATA=FOLDER tools/smollm2.sh STEP, or `make smollm2-STEP`.
#
# Steps: run (a speedup, in minutes); eagle, drafters, glide, exit (training); recordings, costs, untrained; compare; engines;
# rejection. Killed, each command goes on where it was. DATA holds the public prompts that traces/README.md names.
# Steps from recordings on serve another pair too, as coder.sh does: MODELS TRACES (folders), DRAFTERS RULES PER_TASK BUDGET
# DEPTH (recordings), DTYPE THREADS SECONDS_EACH (costs, run, compare), NAMES POLICIES RIVALS PROMPTS TOKENS RUN (run, compare).
set -euo pipefail
S=$BIN/simspec M=${MODELS:-models/smollm2} T=${TRACES:-traces/smollm2} THREADS=${THREADS:-2}
export OMP_NUM_THREADS=$THREADS
shopt -s nullglob
text=(--target $M/target --prompts $M/prompts.jsonl --longest 700 --out $M --dtype "${DTYPE:-bfloat16}")
small=(--draft-vocab 8192)
record=("$S" record $T/prompts.jsonl --models $M --budget "${BUDGET:-128}" --per-task "${PER_TASK:-20}")
ran=(--models $M --threads $THREADS --dtype "${DTYPE:-float32}")
[ -e $M/prompts.jsonl ] || [[ $1 = run || $1 = costs || $1 = engines || $1 = rejection ]] ||
  "$BIN/python" tools/cut_prompts.py "$DATA/eval" "$(basename "$M")" $T/prompts.jsonl $M/prompts.jsonl
learn() { # fixed chats, code and prose
  [ -e $M/learn/text.jsonl ] || "$BIN/python" tools/cut_text.py "$DATA" $T/prompts.jsonl $M/learn
  chat=(--prompts $M/learn/chat.jsonl)
  fixed=($M/learn/text.jsonl --learn-text)
}
case $1 in
  run) name=${NAMES:-greedy/eagle}
    "$S" run $T/$name.parquet --cost $T/$name.cost.json "${ran[@]}" ${RUN:---compare --rival none --policy fixed:2 --prompts 20 --budget 32} ;;
  eagle) # without a GPU, in the form that vLLM loads, then with unrolled draft steps; four hours of two cores
    learn
    eagle=("${text[@]}" "${chat[@]}" "${small[@]}" --set bias=false)
    unroll=(--set unroll=3 --rate 0.0007)
    "$S" train eagle "${fixed[@]}" 700000 "${eagle[@]}" --distil-tokens 250000 --work $M-eagle-work --steps 900 --name eagle-1
    "$S" train eagle "${fixed[@]}" 200000 "${eagle[@]}" --distil-tokens 250000 --work $M-eagle2-work --from eagle-1 --steps 1900 --name eagle-2
    "$S" train eagle "${fixed[@]}" 200000 "${eagle[@]}" --distil-tokens 250000 --work $M-eagle2-work --from eagle-2 --steps 250 "${unroll[@]}" --name eagle-3
    "$S" train eagle "${eagle[@]}" --distil-tokens 330000 --work $M-eagle3-work --from eagle-3 --steps 600 "${unroll[@]}" --name eagle-4 ;;
  drafters)
    from=("${text[@]}" "${small[@]}" --distil-tokens 250000)
    "$S" train glide "${from[@]}" --steps 600
    "$S" train medusa "${from[@]}" --steps 500 --set blocks=1
    "$S" train early_exit "${from[@]}" --steps 300 --set soft=true --set depth=4
    "$S" train model "${from[@]}" --steps 400 --set width=256 --set layers=2 --set heads=4 --set head_dim=64 --set hidden=704
    short=("${text[@]}" "${small[@]}" --distil-tokens 160000)
    "$S" train early_exit "${short[@]}" --steps 500 --set soft=true --set depth=15 --name early_exit-15
    "$S" train hydra "${short[@]}" --steps 400 ;;
  glide) # reading its target's middle layer, trained on twice; over two hours of two cores
    learn
    glide=("${text[@]}" "${chat[@]}" "${small[@]}" --set reads=15)
    "$S" train glide "${glide[@]}" --distil-tokens 150000 --work $M-glide-work --steps 500 --name glide-15
    "$S" train glide "${fixed[@]}" 200000 "${glide[@]}" --distil-tokens 300000 --work $M-glide-work --from glide-15 --steps 1000 --name glide-middle
    "$S" train glide "${fixed[@]}" 780000 "${glide[@]}" --distil-tokens 400000 --work $M-glide2-work --from glide-middle --steps 3000 --name glide-long ;;
  exit) # EESD's exit and its predictor of acceptance: three layers, one new, a head of its own
    learn
    early=(--target $M/target --prompts $M/prompts.jsonl "${chat[@]}" --longest 700 --out $M --work $M-exit-work --distil-tokens 43000)
    "$S" train early_exit "${fixed[@]}" 300000 "${early[@]}" --draft-vocab 4096 --set soft=true --rows 8 --set depth=3 --set own_head=true --steps 1500
    "$S" train predictors "${early[@]}" --set texts=60 ;;
  recordings)
    all=$(printf -- '--drafter %s ' ${DRAFTERS:-prompt_lookup early_exit eagle glide medusa model})
    for rule in ${RULES:-greedy coupled rejection}; do
      case $rule in greedy) drawn=(16) ;; coupled) drawn=(8 --temperature 0.8) ;; *) drawn=(8 --temperature 1) ;; esac
      mkdir -p $T/$rule
      "${record[@]}" $all --depth "${DEPTH:-${drawn[0]}}" --rule $rule "${drawn[@]:1}" --out $T/$rule
    done ;;
  costs) # weights that are not at hand are drawn at random in their sizes: seconds do not depend on values
    [ -n "${DRAFTERS:-}" ] ||
      "$BIN/python" tools/untrained.py sizes $M $T/drafters/{eagle,glide,medusa,early_exit,model}.json
    "$S" measure $(printf -- '--for %s ' $T/{greedy,coupled,rejection}/*.parquet) "${ran[@]}" \
      --seconds "${SECONDS_EACH:-20}" ;;
  untrained) # n-grams of a suffix tree, and the target without layers 12 to 19
    mkdir -p $M/untrained
    "${record[@]}" --drafter suffix --drafter self_skip --depth 8 --rule greedy --out $M/untrained ;;
  compare) # speedups predicted and measured, a quarter of an hour each, alone
    for name in ${NAMES:-greedy/eagle coupled/eagle greedy/prompt_lookup}; do
      "$S" run $T/$name.parquet --compare --cost $T/$name.cost.json "${ran[@]}" \
        --prompts "${PROMPTS:-20}" --budget "${TOKENS:-32}" --save $T/measured/compare-${name/\//-}.json \
        ${RIVALS:-} $(printf -- '--policy %s ' ${POLICIES:-fixed:2 beta_ts cost_ts})
    done ;;
  engines) # costs and speedups on the released engines, with n-grams and the target without eight of its layers
    [ -e $M/draft/model.safetensors ] || "$BIN/python" tools/untrained.py skip $M/target $M/draft 12 19
    tools/engines.sh "$BIN" $M $T/engines ;;
  rejection) # small recordings of the embedded drafters, for tests: 8 prompts of each task, K = 5
    OMP_NUM_THREADS=1 "$S" record traces/tiny-rejection/prompts.jsonl \
      --drafter eagle --drafter early_exit --drafter medusa --drafter model --drafter prompt_lookup --rule rejection \
      --temperature 1 --depth 5 --budget 64 --longest 400 --batch 1 --out traces/tiny-rejection
    rm traces/tiny-rejection/sequences.json ;;
  *) echo "unknown step $1; see the head of this file" >&2 && exit 2 ;;
esac
