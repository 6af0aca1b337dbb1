"""Runs to audit: of the engine, drawn without it, and with one token replaced."""

from dataclasses import replace

import torch
from toy_lm import END, VOCAB, chain_plan, policy_from, toy_cost, toy_pair, toy_prompts, toy_target

from real.audit.runs import EmittedRun, EmittedSequence, RunHeader
from real.decode.loop import decode
from real.draft import Silent
from real.model.target import Target
from real.sampling import Rule

PROMPT = 4
GREEDY, SAMPLED = Rule(), Rule("rejection", 0.8)


def emitted(sequences, rule=GREEDY, dtype="float64", end_tokens=END):
    cuts = rule.temperature, rule.top_k, rule.top_p, rule.seed
    header = RunHeader(rule.name, *cuts, dtype, end_tokens=end_tokens)
    return EmittedRun(header, tuple(sequences))


def decoded(
    rule, count=6, budget=24, decoder=None, dtype="float64", policy="fixed:3", drafter="model",
    seed=0
):  # fmt: skip
    """A run of the engine on random prompts, by the toy target or by `decoder`."""
    target, toy_drafter = toy_pair(drafter)
    target = target if decoder is None else Target(decoder)
    toy_drafter = toy_drafter if decoder is None else Silent()
    drive = chain_plan(policy_from(policy, None, None), 6, 0, toy_cost())
    sequences = []
    for s, prompt in enumerate(toy_prompts(count, seed)):
        result = decode(target, toy_drafter, drive, rule, prompt, budget, END, s)
        columns = result.position, result.computed, result.drafted, result.accepted
        rounds = zip(*(column.tolist() for column in columns))
        sequences.append(EmittedSequence(prompt, result.token.tolist(), s, tuple(rounds)))
    return emitted(sequences, rule, dtype)


@torch.inference_mode()
def next_logits(decoder, cache, text, first):
    """Logits `[n, vocab]` after the texts `[n, length]`, whose first tokens the cache knows."""
    rows, length = text.shape[1] - first, text.shape[1]
    mask = torch.ones(rows, length, dtype=torch.bool).tril(first)
    rotation, layers = decoder.rotation(torch.arange(first, length)), range(len(decoder.layers))
    x = decoder.run(decoder.embed(text[:, first:]), layers, rotation, mask, cache, first)
    return decoder.logits(x[:, -1])


def drawn(distribution, count=100, length=40, seed=1, rule=SAMPLED):
    """Sequences drawn from distribution(target logits, drafter logits), without the engine."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(4, VOCAB, (count, PROMPT), generator=generator)
    models = toy_target(), toy_pair("model")[1].lm
    caches = [model.cache(batch=count, capacity=PROMPT + length) for model in models]
    first = 0
    for _ in range(length):
        p, q = (next_logits(*known, text, first) for known in zip(models, caches))
        first = text.shape[1]
        text = torch.cat((text, torch.multinomial(distribution(p, q), 1, generator=generator)), 1)
    return emitted(
        [EmittedSequence(t[:PROMPT].tolist(), t[PROMPT:].tolist(), s) for s, t in enumerate(text)],
        rule,
        end_tokens=(),
    )


def tampered(run, text, position, token):
    """The run with one token replaced and the later ones unchanged."""
    changed = list(run.sequences[text].token)
    changed[position] = token
    sequences = list(run.sequences)
    sequences[text] = replace(sequences[text], token=tuple(changed), rounds=())
    return replace(run, sequences=tuple(sequences))


def distribution(rule):
    """Draws by the rule."""
    return lambda p, q: rule.probs(p)
