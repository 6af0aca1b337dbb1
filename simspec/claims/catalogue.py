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
        "of the prompts.",
    ),
    Claim(
        2, "Cali-TS beats Beta-TS.", EESD, "Tables 1 to 3", thompson.calibrated_against_beta,
        detail="Cali-TS reads the recorded theta, or a scalar predictor fitted to the other half.",
    ),
    Claim(
        3, "Sampling-prediction matters more than model-prediction.", EESD, "section 5.1, Table 4",
        thompson.sampling_against_model,
        detail="Cali-TS without the first is slower than without the second.",
    ),
    Claim(
        4, "The best draft length differs between samples, models and tasks.", EESD,
        "Figures 1b and 3", draft_lengths.lengths_differ,
        detail="Samples: what a long draft gains in one half of an output goes with what it gains "
        "in the other (correlation above 0.1). Tasks and models: a length of one's own is faster "
        "on prompts that did not choose it.",
    ),
    Claim(
        5, "Thompson sampling also helps vanilla and self-speculative drafters.", EESD, "Table 5",
        thompson.other_drafters, detail="Against K = 10, the paper's setting, or the deepest.",
    ),
    Claim(
        6, "A higher HM need not mean a higher speedup.", EESD, "section 4.2, Table 1",
        draft_lengths.higher_hm_lower_speedup,
        detail="There is such a pair: of all drafters of a target at K = 1, 2, 4 and 10, the two "
        "that disagree most on one half of the prompts, tested on the other.",
    ),
    Claim(
        7, "The layer behind the early exit makes EESD work; a second does not pay.", EESD,
        "Table 4, Figure 5", ablations.exit_layers, needs="no card",
        detail="Cards of 0, 1 and 2 layers at N of 5 to 10%: accepted lengths with one and "
        "without, and time under Beta-TS of one against none and two.",
    ),
    Claim(
        8, "N at 5 to 10% of the target's layers is best.", EESD, "section 5.4, Figure 4",
        ablations.exit_depth, needs="no card",
        detail="Time under Beta-TS, on recordings of exits with one layer behind them.",
    ),
    Claim(
        9, "Self-distillation helps.", EESD, "Table 4", ablations.self_distillation, (),
        needs="no card", detail="Cards with and without the target's outputs.",
    ),
    Claim(
        10, "Tree attention adds speedup to EESD.", EESD, "section 5.7, Table 7",
        trees.tree_attention,
        detail="Sequoia's tree of the best size and the best chain, plain decoding among both; "
        "each is chosen on the other half.",
    ),
    Claim(
        11, "Reading the target's cache raises acceptance, more so from upper layers.", GLIDE,
        "Figures 4 and 7", ablations.target_cache, (), needs="no card",
        detail="Cards with and without cross-attention, and of other layers.",
    ),
    Claim(
        12, "Acceptance grows with the drafter's confidence.", GLIDE, "Figure 1b",
        acceptance.by_confidence, (), detail="Drafted tokens up to the first miss.",
    ),
    Claim(
        13, "CAPE pays, beam search does not, and sizes by confidence beat one size.", GLIDE,
        "Figure 6, section 5.4, Table 3", trees.expansion_sets,
        detail="At the paper's draft length of 5; sets of 4 as the one size. Beams where they are "
        "recorded.",
    ),
    Claim(
        14, "Features are easier to extrapolate than tokens; shifted tokens gain most.", EAGLE,
        "Figure 10", ablations.eagle_inputs, (), needs="no card",
        detail="Cards of the four inputs.",
    ),
    Claim(
        15, "0-alpha exceeds 1-alpha, and 1-alpha to 4-alpha are nearly equal.", EAGLE,
        "Tables 1 and 2", acceptance.by_draft_depth, (),
        detail="Nearly equal: within 0.1; the papers' own largest difference is 0.11.",
    ),
    Claim(
        16, "Tree drafts add 0.6 to 0.8 to tau.", EAGLE, "section 5.3.1, Table 5",
        trees.added_length, (),
        detail="EAGLE's tree of 25 nodes against a chain of its depth, 5.",
    ),
    Claim(
        17, "Gains shrink as the batch grows.", EAGLE, "Table 7", batches.shrinking_gains,
        batches.ROWS,
        detail="Batches 4, the paper's largest, and 16, extrapolated from rows of one sequence. "
        "With flat verification a batch costs nothing, so that price is left out.",
    ),
    Claim(
        18, "Sorted training with adaptive exits beats one fixed exit; small targets want low "
        "thresholds.", S2D, "Table 2, Figure 3", sorted_exits.sorted_training, needs="no card",
        detail="Recordings of drafters trained at all exits and at the last; lengths and "
        "thresholds are chosen on the other half. Thresholds by the size of the target need "
        "several targets and are not tested.",
    ),
    Claim(
        19, "Code is accelerated most.", EAGLE, "section 5.1, Figure 8",
        draft_lengths.code_is_fastest, detail="Against each other task, at one length for all.",
    ),
    Claim(
        20, "Cali-TS spends more on sampling but less in total than Beta-TS.", EESD, "Table 8",
        thompson.time_by_phase, thompson.BREAKDOWN,
        detail="At measured costs, which alone price sampling.",
    ),
)  # fmt: skip
"""All claims; a claim is one entry here and one function in a module beside."""
