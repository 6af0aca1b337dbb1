"""The same prompts through transformers' generation and through our loop: who takes part in a race, and how each is asked."""

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from real.bench.race import PLAIN, Contestant, Once
from real.decode.engine import make_passes, passes_for_trace
from real.decode.features import required_predictors
from real.decode.loop import decode
from real.decode.plan import make_plan
from real.draft import Drafter, Silent, check_grows
from real.model.checkpoint import WeightsError
from real.pair import DTYPES, Pair, load_pair
from real.sampling import Rule
from simspec import CostModel, Policy, Trace, policies
from simspec.tree_policy import TreePolicy

SCHEDULES = ("constant", "heuristic", "heuristic_transient")
RIVALS = (
    "generate",
    "generate_static",
    *(f"assisted:{schedule}" for schedule in SCHEDULES),
    "prompt_lookup:10",
)


class RivalError(ValueError):
    """A contestant that cannot be asked for, and why."""


def check_rival(text: str) -> tuple[str, dict]:
    """(kind, options) of generate, generate_static, assisted:SCHEDULE[,TOKENS[,THRESHOLD]] or prompt_lookup:TOKENS; RivalError otherwise.

    TOKENS and THRESHOLD are transformers' num_assistant_tokens and assistant_confidence_threshold, where left out its own defaults.
    """
    kind, colon, rest = text.partition(":")
    given = rest.split(",") if colon else []
    if kind in ("generate", "generate_static") and not colon:
        return kind, {}
    try:
        if kind == "prompt_lookup" and len(given) == 1 and int(rest) > 0:
            return kind, {"prompt_lookup_num_tokens": int(rest)}
        if kind == "assisted" and given and given[0] in SCHEDULES and len(given) < 4:
            options: dict = {"num_assistant_tokens_schedule": given[0]}
            if (
                len(given) > 1
                and int(given[1]) < 1
                or len(given) > 2
                and not 0 <= float(given[2]) <= 1
            ):
                raise ValueError
            options |= {"num_assistant_tokens": int(given[1])} if len(given) > 1 else {}
            return kind, options | (
                {"assistant_confidence_threshold": float(given[2])} if len(given) > 2 else {}
            )
    except ValueError:
        pass
    wanted = f"generate, generate_static, assisted:{{{'|'.join(SCHEDULES)}}}[,tokens[,threshold]] or prompt_lookup:tokens"
    raise RivalError(f"rival {text!r} is unknown; expected {wanted}")


def load_rival(path: str | Path, dtype: str, device: str):
    """A checkpoint as transformers' own model, its generation settings emptied: those of a chat model would change greedy text."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    logging.getLogger("transformers.generation.utils").addFilter(_not_noise)
    try:
        model = (
            AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[dtype], use_safetensors=True)
            .to(device)
            .eval()
        )
    except Exception as error:  # as in load_decoder: transformers raises whatever it meets first
        raise WeightsError(
            f"{path} cannot be loaded by transformers: {' '.join(str(error).split())[:300]}"
        ) from error
    model.generation_config = GenerationConfig()
    return model.requires_grad_(False)


def _not_noise(record: logging.LogRecord) -> bool:
    """False for what assisted generation warns of in its own calls: nobody here can heed it."""
    return "Passing `generation_config` together with" not in record.getMessage()


def rival(text: str, model, assistant=None, end_tokens: Sequence[int] = ()) -> Contestant:
    """transformers' `generate` of `model` as `check_rival` describes it; RivalError where that needs an assistant and there is none."""
    from transformers import GenerationConfig

    kind, options = check_rival(text)
    if kind == "assisted" and assistant is None:
        raise RivalError(
            f"rival {text!r} needs a small model; expected one in <models>/model, or leave the rival out"
        )
    ends = {
        "eos_token_id": list(end_tokens) or None,
        "pad_token_id": end_tokens[0] if end_tokens else None,
    }
    how = {
        "generate_static": {"cache_implementation": "static"},
        "prompt_lookup": options,
        "assisted": {"assistant_model": assistant},
    }
    how = {"do_sample": False, "use_cache": True} | ends | how.get(kind, {})
    drafts = kind in ("assisted", "prompt_lookup")

    def begin() -> Once:
        settings = GenerationConfig(**options) if kind == "assisted" else None

        def once(prompt: Sequence[int], budget: int, sequence: int) -> tuple[list[int], int]:
            passes = 0

            def count(*_) -> None:
                nonlocal passes
                passes += 1

            if settings is not None:
                assistant.generation_config = (
                    settings  # `heuristic` goes from text to text in here, of this contestant alone
                )
            ids = torch.tensor([prompt], device=model.device)
            hook = (
                model.register_forward_pre_hook(count) if drafts else None
            )  # a compiled forward is left alone
            try:
                out = model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=budget, **how
                )
            finally:
                if hook is not None:
                    hook.remove()
            token = out[0, len(prompt) :].tolist()
            return token, passes if drafts else len(token)

        return once

    def remark() -> str:
        if kind == "generate_static":
            return (
                "forward compiled by transformers"
                if hasattr(model, "_compiled_call")
                else "static cache, not compiled"
            )
        if (
            kind == "assisted"
            and find_spec("sklearn") is None
            and options.get("assistant_confidence_threshold") != 0
        ):
            return "confidence threshold does not adapt (no scikit-learn)"
        return ""

    return Contestant(text, begin, drafts, remark)


def own(
    name: str,
    pair: Pair,
    drafter: Drafter,
    policy: Policy | TreePolicy,
    K: int,
    seed: int,
    told: CostModel,
    end_tokens: Sequence[int] = (),
    tree: tuple = (),
) -> Contestant:
    """Our loop with a drafter and a policy, which hears the modelled seconds of `told`; `plain` is `Silent()` and fixed(0).

    ValueError for a policy that asks more of the drafter than it has: depth, features, trees.
    """

    plan = make_plan(
        policy, K, seed, told, tree
    )  # what cannot run is refused before the race, not in it
    required_predictors(tuple(policy.reads), drafter)
    if isinstance(policy, TreePolicy) and policy.kind != "cape":
        check_grows(drafter, plan.K)

    def begin() -> Once:
        drive = make_plan(policy, K, seed, told, tree)

        def once(prompt: Sequence[int], budget: int, sequence: int) -> tuple[list[int], int]:
            result = decode(
                pair.target,
                drafter,
                drive,
                Rule(),
                list(prompt),
                budget,
                tuple(end_tokens),
                sequence,
                exact=False,
            )
            return result.token.tolist(), len(result.position)

        return once

    return Contestant(name, begin, name != PLAIN, warm=pair.target.passes.warm)


def check_own(text: str) -> tuple[str, str]:
    """(drafter, policy) of `drafter=policy`; RivalError for another form, and for a policy that knows the recorded text."""
    drafter, equals, policy = text.partition("=")
    if not (drafter and equals and policy):
        raise RivalError(
            f"contestant {text!r} is no drafter=policy; expected one such as model=fixed:3"
        )
    if policy.partition(":")[0] in policies.CLAIRVOYANT:
        raise RivalError(
            f"contestant {text!r} knows the recorded text and is only replayed; expected a policy that can run"
        )
    policies.parse(policy)
    return drafter, policy


def pairs(
    models: Path,
    trace: Trace,
    wanted: Sequence[str],
    engine: str = "eager",
    device: str = "cpu",
    dtype: str = "float32",
    target=None,
) -> dict[str, Pair]:
    """Ours, by drafter: that of `plain` (which reads none of the target's layers), and one for every drafter in `wanted`.

    Each with passes of its own of that engine, for texts as long as the trace's; under "strict" all are of one width.
    """
    asked = [check_own(text) for text in wanted]
    rows = {
        drafter: max(policies.parse(p).submitted(trace.K) for d, p in asked if d == drafter)
        for drafter, _ in asked
    }
    widest = max(rows.values(), default=0)

    def load(drafter: str, passes) -> Pair:
        return load_pair(models, drafter, device, dtype, target, passes=passes)

    if engine == "strict":
        return {
            name: load(of, passes_for_trace(engine, trace, widest))
            for name, of in ((PLAIN, "prompt_lookup"), *zip(rows, rows))
        }
    longest = int((np.diff(trace.prompt_offset) + trace.budget).max())
    plain = load(
        "prompt_lookup", make_passes(engine, 1, longest)
    )  # nothing wider than its one row is captured
    return {PLAIN: plain} | {
        drafter: load(drafter, passes_for_trace(engine, trace, rows[drafter])) for drafter in rows
    }


def entrants(
    models: Path,
    trace: Trace,
    made: Mapping[str, Pair],
    wanted: Sequence[str],
    rivals: Sequence[str] = RIVALS,
    told: Mapping[str, CostModel] | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    target: str | None = None,
) -> list[Contestant]:
    """`plain`, ours of `wanted` (drafter=policy) on the `pairs` made for them, and transformers' `rivals` on the same checkpoints.

    Texts end at the trace's end tokens, and drafts reach its K. `told`: what policies hear, by drafter; where missing a ratio of 0.1.
    A rival that lacks what it needs takes part and fails, so that its row says why. ValueError for what cannot be asked.
    """
    asked = [(text, *check_own(text)) for text in wanted]
    kinds = [check_rival(text)[0] for text in rivals]
    ends, K, ratio = trace.meta.end_tokens, trace.K, CostModel.from_ratio(0.1, trace.K)
    found = [own(PLAIN, made[PLAIN], Silent(), policies.parse("fixed:0"), K, seed, ratio, ends)]
    for text, drafter, policy in asked:
        cost = (told or {}).get(drafter, ratio)
        tree = trace.meta.tree if trace.meta.drafter == drafter else ()
        found.append(
            own(
                text,
                made[drafter],
                made[drafter].drafter,
                policies.make(policy, trace, cost),
                K,
                seed,
                cost,
                ends,
                tree,
            )
        )
    model = load_rival(target or models / "target", dtype, device) if rivals else None
    small = models / "model"
    assistant = (
        load_rival(small, dtype, device)
        if "assisted" in kinds and (small / "config.json").exists()
        else None
    )
    for text, kind in zip(rivals, kinds):
        lacks = kind == "assisted" and assistant is None
        reason = f"{small} holds no small model; expected a checkpoint there"
        found.append(absent(text, reason) if lacks else rival(text, model, assistant, ends))
    return found


def absent(name: str, reason: str) -> Contestant:
    """A contestant that cannot run, and why."""

    def begin() -> Once:
        raise RivalError(reason)

    return Contestant(name, begin, True)
