"""A right document of each export format, and some more of other kinds."""

import json

from simspec.engines.request import Settings

VLLM = json.dumps(
    {
        "method": "draft_model",
        "model": "DRAFT",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 32, 3], [33, 128, 1]],
    }
)
SYNTHETIC = json.dumps(
    {
        "method": "ngram",
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.75, 0.5, 0.25],
    }
)
SGLANG = (
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path D --speculative-num-steps 5 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 6"
)
ADAPTIVE = json.dumps(
    {
        "ema_alpha": 0.2,
        "update_interval": 5,
        "warmup_batches": 10,
        "1": {"candidate_steps": [1, 3, 5], "up_hysteresis": 0.0, "down_hysteresis": -0.25},
        "8": {"candidate_steps": [0, 2], "ceiling_coeff": 0},
    }
)
TENSORRT = """speculative_config:
  decoding_type: Eagle3
  max_draft_len: 4
  speculative_model: DRAFT
  acceptance_rate_window_size: 100
  acceptance_rate_threshold: 0.3
  draft_len_schedule:
    4: 4
    8: 2
    32: 1
"""
LLAMACPP = (
    "--spec-type draft-simple --model-draft D --spec-draft-n-max 8 --spec-draft-n-min 0 "
    "--spec-draft-p-min 0.75"
)
LLAMACPP_SYNTHETIC = (
    "--spec-type draft-simple --model-draft D --spec-draft-n-max 3 --spec-draft-n-min 0 "
    "--spec-draft-p-min 0.0 --spec-synth-rates 0.75,0.5,0.25"
)
TRANSFORMERS = json.dumps(
    {
        "num_assistant_tokens": 5,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.4,
    }
)
PROFILE = json.dumps(
    {
        "schema_version": "1.0",
        "measured": True,
        "method": "eagle3",
        "draft_checkpoint": {"id": "DRAFT"},
        "target_model": {"id": "TARGET"},
        "num_speculative_tokens": 2,
        "block_size": None,
        "max_supported_k": 3,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": [0.75, 0.666667],
        "marginal_accept_rates": [0.75, 0.5],
        "mean_accept_length": 2.25,
        "mean_accept_length_per_request": 2.3,
        "accept_length_model": "measured_per_k",
        "accept_length_by_k": {"1": 1.8, "2": 2.25, "3": 2.4},
        "acceptance_length_histogram": {"1": 10, "2": 10, "3": 20},
        "per_category": {"code": {"mean_accept_length": 2.4}},
        "measurement_conditions": {"temperature": 0.0},
        "validation": {
            "mean_consistency": {
                "implied_mean_accept_length": 2.25,
                "reported_mean_accept_length": 2.25,
                "abs_delta": 0.0,
                "tolerance": 0.02,
                "passed": True,
            },
            "marginal_monotonicity": {"passed": True, "violations": []},
        },
    }
)
GOLDEN = """model:
  thinking_on:
    1: 1.83
    2: 2.43
  thinking_off:
    1: 1.7
    2: 2.3
"""
DYNAMO = "--aic-nextn 3 --aic-nextn-accept-rates 0.75,0.5,0.25"
SPEC_BENCH = "".join(
    json.dumps(
        {
            "question_id": identity,
            "category": "coding",
            "answer_id": f"a{identity}",
            "model_id": "target-draft",
            "choices": [
                {
                    "index": 0,
                    "turns": ["one", "two"],
                    "decoding_steps": [2, 1],
                    "new_tokens": [5, 3],
                    "wall_time": [0.5, 0.25],
                    "accept_lengths": [4, 1, 3],
                }
            ],
            "tstamp": 1.5,
        }
    )
    + "\n"
    for identity in (81, 82)
)

RIGHT = {
    "vllm": (VLLM, Settings(captured=512)),
    "vllm-synthetic": (SYNTHETIC, Settings()),
    "sglang": (SGLANG, Settings()),
    "sglang-adaptive": (ADAPTIVE, Settings()),
    "tensorrt-llm": (TENSORRT, Settings(engine_version="1.3.0")),
    "llamacpp": (LLAMACPP, Settings()),
    "llamacpp-synthetic": (LLAMACPP_SYNTHETIC, Settings()),
    "transformers": (TRANSFORMERS, Settings()),
    "speculation-profile": (PROFILE, Settings()),
    "golden-al": (GOLDEN, Settings()),
    "dynamo": (DYNAMO, Settings()),
    "spec-bench": (SPEC_BENCH, Settings()),
}
"""{format: (a right document, the settings it is read with)}"""

MEAN_LENGTH = LLAMACPP_SYNTHETIC.replace("rates 0.75,0.5,0.25", "len 2.5")
ONE_K = PROFILE.replace('{"1": 1.8, "2": 2.25, "3": 2.4}', '{"2": 2.25}')
ADAPTED = '"enable_adaptive_verification": true, "num_speculative_tokens": 2}'
MORE_RIGHT = (
    ("llamacpp-synthetic", MEAN_LENGTH, Settings()),
    ("vllm", '{"model": "D", "num_speculative_tokens": 2}', Settings()),
    ("vllm", '{"method": "ngram_gpu", "num_speculative_tokens": 2}', Settings()),
    ("vllm", '{"method": "ngram", "num_speculative_tokens": 2}', Settings()),
    (
        "vllm",
        '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}',
        Settings(),
    ),
    (
        "vllm",
        '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 3}',
        Settings(),
    ),
    ("vllm", '{"method": "custom_class", "model": "a.B", "num_speculative_tokens": 2}', Settings()),
    ("vllm", '{"method": "mtp", "model": "D", "num_speculative_tokens": 2}', Settings()),
    ("vllm", '{"method": "dspark", ' + ADAPTED, Settings()),
    ("vllm", '{"method": "eagle3", "model": "D", ' + ADAPTED, Settings()),
    (
        "vllm",
        '{"method": "eagle3", "model": "D", "num_speculative_tokens": 2, "revision": "main", '
        '"draft_sample_method": "probabilistic", "rejection_sample_method": "block", '
        '"draft_tensor_parallel_size": 2, "parallel_drafting": true}',
        Settings(),
    ),
    (
        "sglang",
        "--speculative-algorithm NGRAM --speculative-num-draft-tokens 5 "
        "--speculative-ngram-max-bfs-breadth 1",
        Settings(),
    ),
    (
        "sglang",
        "--speculative-algorithm DFLASH --speculative-draft-model D "
        "--speculative-num-draft-tokens 5",
        Settings(),
    ),
    (
        "sglang",
        "--speculative-algorithm DSPARK --speculative-num-draft-tokens 5 "
        "--speculative-num-steps 1 --speculative-eagle-topk 1",
        Settings(),
    ),
    (
        "sglang",
        "--speculative-algorithm UNO --uno-lora-path L --speculative-num-draft-tokens 5",
        Settings(),
    ),
    (
        "sglang",
        "--speculative-algorithm FROZEN_KV_MTP --speculative-num-steps 2 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 3",
        Settings(),
    ),
    (
        "sglang",
        "--speculative-algorithm EAGLE --speculative-num-steps 2 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 3",
        Settings(),
    ),
    ("llamacpp", LLAMACPP.replace("--spec-draft-p-min", "--draft-p-min"), Settings()),
    ("llamacpp", LLAMACPP.replace("--model-draft", "--spec-draft-model"), Settings()),
    ("llamacpp", LLAMACPP + " --spec-draft-sampling probabilistic", Settings()),
    (
        "llamacpp",
        "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8",
        Settings(),
    ),
    ("dynamo", DYNAMO.replace("--aic", "--ais"), Settings()),
    ("dynamo", DYNAMO.replace("--aic-nextn 3", "--ais-nextn 3"), Settings()),
    ("speculation-profile", ONE_K, Settings()),
    ("vllm", '{"method": "mtp", "num_speculative_tokens": 2}', Settings()),
    (
        "vllm-synthetic",
        '{"method": "mtp", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic", '
        '"synthetic_acceptance_length": 2.5}',
        Settings(),
    ),
    ("sglang", SGLANG.replace("topk 1", "topk 2").replace("tokens 6", "tokens 19"), Settings()),
    (
        "tensorrt-llm",
        TENSORRT.replace("    4: 4\n", "    1: 4\n"),
        Settings(engine_version="1.2.0"),
    ),
    ("transformers", '{"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 2}', Settings()),
)
