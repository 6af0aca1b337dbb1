"""The 20 claims of four papers, in the order of the list that the project set out to test."""

from simspec.claims import (
    ablations,
    acceptance,
    batches,
    draft_lengths,
    sorted_exits,
    thompson,
    trees,
)
from simspec.claims.claim import Claim

EESD, GLIDE, EAGLE, S2D = "EESD", "GLIDE with a CAPE", "EAGLE", "S2D"
REFERENCES = {
    EESD: "arXiv 2406.03853",
    GLIDE: "arXiv 2402.02082",
    EAGLE: "arXiv 2401.15077",
    S2D: "arXiv 2407.01955",
}

CLAIMS = (
    Claim(
        1, "Beta-TS is at least as good as the best fixed draft length.", EESD,
        "section 5.2, Figure 3", thompson.against_best_fixed,
        detail="Not slower by more than 1% than the best of K = 1 to 10, chosen on the other half "
        "of the prompts. Every trained drafter; the early exit also raised to acceptances of 0.7 "
        "and 0.8.",
        regime="EESD's early exit on LLaMA-2 13B and 70B, greedy, on GPUs.",
    ),
    Claim(
        2, "Cali-TS beats Beta-TS.", EESD, "Tables 1 to 3", thompson.calibrated_against_beta,
        detail="Cali-TS reads the recorded theta, or a scalar predictor fitted to the other half. "
        "A raised recording has no features, so it cannot carry this claim.",
        regime="EESD's early exit, and a predictor of 262 M parameters or more on its hidden "
        "states.",
    ),
    Claim(
        3, "Sampling-prediction matters more than model-prediction.", EESD, "section 5.1, Table 4",
        thompson.sampling_against_model,
        detail="Cali-TS without the first is slower than without the second. A raised recording "
        "has no features, so it cannot carry this claim.",
        regime="EESD's early exit on LLaMA-2-13B.",
    ),
    Claim(
        4, "The best draft length differs between samples.", EESD, "Figure 1b",
        draft_lengths.samples_differ, part="a",
        detail="What a long draft gains in one half of an output goes with what it gains in the "
        "other (correlation above 0.1). Raised recordings add acceptance at random, which would "
        "dilute every difference that 4a to 4c look for, so they cannot carry them.",
        regime="the best K of each sample in hindsight, which also fits its noise.",
    ),
    Claim(
        4, "The best draft length differs between tasks.", EESD, "Figure 3",
        draft_lengths.tasks_differ, part="b",
        detail="A length for each task is faster on prompts that did not choose it.",
        regime="two or three tasks, a sweep over K in hindsight.",
    ),
    Claim(
        4, "The best draft length differs between models.", EESD, "Figure 3",
        draft_lengths.models_differ, part="c",
        detail="A length of the target's own is faster, on prompts that did not choose it, than "
        "the best length of the same kind of drafter for the other target.",
        regime="LLaMA-2 of 13B and 70B.",
    ),
    Claim(
        5, "Thompson sampling also helps vanilla and self-speculative drafters, against K = 10.",
        EESD, "Table 5", thompson.others_at_ten, part="a",
        detail="Against K = 10, or the deepest recorded. Where K = 10 loses far more than in the "
        "paper, it is no fair baseline: the paper's drafters are accepted far more often. Raised "
        "recordings show an acceptance of 0.9.",
        regime="K = 10, 'a suitable setting' there, loses 2 to 14% to Beta-TS.",
    ),
    Claim(
        5, "Thompson sampling also helps vanilla and self-speculative drafters, against the best "
        "fixed length.", EESD, "Table 5", thompson.others_at_best, part="b",
        detail="Against the best of K = 1 to 10, chosen on the other half of the prompts.",
        regime="not tested against another K than 10.",
    ),
    Claim(
        6, "A higher HM need not mean a higher speedup.", EESD, "section 4.2, Table 1",
        draft_lengths.higher_hm_lower_speedup,
        detail="There is such a pair: of all drafters of a target at K = 1, 2, 4 and 10, the two "
        "that disagree most on one half of the prompts, tested on the other.",
        regime="pairs of methods in its tables.",
    ),
    Claim(
        7, "The layer behind the early exit raises acceptance.", EESD, "Table 4",
        ablations.layer_lengthens, (), part="a", needs="no card",
        detail="Cards of 1 and 0 layers at N of 5 to 10%: accepted lengths.",
        regime="LLaMA-2-13B, HM with and without the layer.",
    ),
    Claim(
        7, "The layer behind the early exit pays.", EESD, "Table 4", ablations.layer_pays,
        part="b", needs="no card", detail="The same cards: time under Beta-TS.",
        regime="LLaMA-2-13B, speedup with and without the layer.",
    ),
    Claim(
        7, "A second layer behind the early exit does not pay.", EESD, "Figure 5",
        ablations.second_layer_costs, part="c", needs="no card",
        detail="Cards of 1 and 2 layers: time under Beta-TS.",
        regime="more layers behind the exit, under Beta-TS.",
    ),
    Claim(
        8, "N at 5 to 10% of the target's layers is best.", EESD, "section 5.4, Figure 4",
        ablations.exit_depth, needs="no card",
        detail="Time under Beta-TS, on recordings of exits with one layer behind them.",
        regime="LLaMA-2 of 40 and 80 layers, under Beta-TS.",
    ),
    Claim(
        9, "Self-distillation helps.", EESD, "Table 4", ablations.self_distillation, (),
        needs="no card", detail="Cards with and without the target's outputs.",
        regime="LLaMA-2-13B, open data with and without the target's outputs.",
    ),
    Claim(
        10, "Tree attention adds speedup to EESD.", EESD, "section 5.7, Table 7",
        trees.tree_attention,
        detail="Sequoia's tree of the best size and the best chain, plain decoding among both; "
        "each is chosen on the other half. Every trained drafter. A raised recording has no "
        "siblings, so it cannot carry this claim.",
        regime="EESD's early exit with and without tree attention, where verification is nearly "
        "flat.",
    ),
    Claim(
        11, "Reading the target's cache raises acceptance.", GLIDE, "Figure 4",
        ablations.target_cache, (), part="a", needs="no card",
        detail="Cards with and without cross-attention.",
        regime="GLIDE against a vanilla drafter of its size, targets of 7B to 33B.",
    ),
    Claim(
        11, "Upper layers' caches raise acceptance more.", GLIDE, "Figure 7",
        ablations.upper_layers, (), part="b", needs="no card",
        detail="Each pair of cards that read different layers.",
        regime="GLIDE that reads one layer or another of a 7B target.",
    ),
    Claim(
        12, "Acceptance grows with the drafter's confidence.", GLIDE, "Figure 1b",
        acceptance.by_confidence, (), detail="Drafted tokens up to the first miss.",
        regime="a vanilla drafter, a preliminary experiment.",
        construction="cross-entropy makes the drafter's confidence its estimate of acceptance, so "
        "the slope of any drafter that learned something is above 0.",
    ),
    Claim(
        13, "CAPE pays.", GLIDE, "Figure 6", trees.cape_pays, part="a",
        detail="Against a chain of the paper's draft length, 5.",
        regime="drafts of 5 on targets of 7B to 33B, where verification is nearly flat.",
    ),
    Claim(
        13, "Beam search does not pay.", GLIDE, "section 5.4, Table 3", trees.beam_search,
        part="b",
        detail="Against a chain of its depth, where beams are recorded. Under the coupled rule "
        "beams are kept by probability while the shared noise picks the token, so these recordings "
        "do not count.",
        regime="greedy decoding, 4 beams; a step of the drafter takes twice as long.",
    ),
    Claim(
        13, "Sizes by confidence beat one size.", GLIDE, "section 5.4", trees.sizes_by_confidence,
        part="c",
        detail="At the paper's draft length of 5; the one size, drawn for each prompt from two "
        "whole ones, submits as many nodes a round as CAPE does on the other half.",
        regime="4, the average size of CAPE's sets there: 70.6 against 68.4 tokens/s.",
    ),
    Claim(
        14, "Features are easier to extrapolate than tokens.", EAGLE, "Figure 10",
        ablations.features_or_tokens, (), part="a", needs="no card",
        detail="Cards of heads that read the one or the other.",
        regime="heads on Vicuna 7B, trained on far more text.",
    ),
    Claim(
        14, "Shifted tokens gain most.", EAGLE, "Figure 10", ablations.shifted_tokens, (),
        part="b", needs="no card",
        detail="Adding the token unshifted gains less than shifting it.",
        regime="heads on Vicuna 7B, trained on far more text.",
    ),
    Claim(
        15, "0-alpha exceeds 1-alpha.", EAGLE, "Tables 1 and 2", acceptance.first_depth, (),
        part="a", detail="All rows of a recording.", regime="Vicuna and LLaMA2-Chat, 7B to 70B.",
    ),
    Claim(
        15, "1-alpha to 4-alpha are nearly equal.", EAGLE, "Tables 1 and 2",
        acceptance.later_depths, (), part="b",
        detail="Within 0.1; the paper's own largest difference is 0.11.",
        regime="Vicuna and LLaMA2-Chat, 7B to 70B.",
    ),
    Claim(
        16, "Tree drafts add 0.6 to 0.8 to tau.", EAGLE, "section 5.3.1, Table 5",
        trees.added_length, (),
        detail="EAGLE's tree of 25 nodes against a chain of its depth, 5.",
        regime="the same tree, on Vicuna and LLaMA2-Chat.",
    ),
    Claim(
        17, "Gains shrink as the batch grows.", EAGLE, "Table 7", batches.shrinking_gains,
        batches.ROWS,
        detail="Batches 4, the paper's largest, and 16, extrapolated from rows of one sequence. "
        "With flat verification a batch costs nothing, so that price is left out.",
        regime="batches of 1 to 4, measured.",
        construction="a batch is priced as so many more rows of one pass, so where rows have a "
        "price the gain shrinks by arithmetic.",
    ),
    Claim(
        18, "Sorted training with adaptive exits beats one fixed exit.", S2D, "Table 2",
        sorted_exits.sorted_training, part="a", needs="no card",
        detail="Recordings of drafters trained at all exits and at the last. Lengths, and one "
        "threshold from 0.05 to 0.95 for all exits, are chosen on the other half.",
        regime="one sorted drafter for several targets, against drafters of one exit.",
    ),
    Claim(
        18, "Small targets want low thresholds, large ones high.", S2D, "Figure 3",
        sorted_exits.by_size, (), part="b", needs="no recording",
        detail="Needs one sorted drafter on several targets; sorted recordings have one.",
        regime="targets of several sizes, one drafter.",
    ),
    Claim(
        19, "Code is accelerated most.", EAGLE, "section 5.1, Figure 8",
        draft_lengths.code_is_fastest, detail="Against each other task, at one length for all.",
        regime="MT-bench and HumanEval, targets of 7B to 70B.",
    ),
    Claim(
        20, "Cali-TS spends more on sampling than Beta-TS.", EESD, "Table 8",
        thompson.sampling_time, thompson.BREAKDOWN, part="a",
        detail="At measured costs, which alone price sampling.",
        regime="LLaMA-2 of 13B and 70B, seconds by phase on 200 samples.",
        construction="Beta-TS reads no feature, and reading one has a measured price above 0.",
    ),
    Claim(
        20, "Cali-TS spends less on drafting and verification than Beta-TS.", EESD, "Table 8",
        thompson.passes_time, thompson.BREAKDOWN, part="b", detail="At measured costs.",
        regime="LLaMA-2 of 13B and 70B, seconds by phase on 200 samples.",
    ),
    Claim(
        20, "Cali-TS spends less in total than Beta-TS.", EESD, "Table 8",
        thompson.calibrated_against_beta, thompson.BREAKDOWN, part="c",
        detail="At measured costs, as claim 2.",
        regime="LLaMA-2 of 13B and 70B, seconds by phase on 200 samples.",
    ),
)  # fmt: skip
"""All claims; a claim, or a part of one, is one entry here and one function in a module beside."""
