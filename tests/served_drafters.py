"""A small Llama target and drafters of it, in sizes that vLLM's CPU attention takes."""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from toy_checkpoint import sentences, word_tokenizer
from toy_lm import recorded

from real.decode.features import drafter_features
from real.draft import TrainingBatch
from real.draft.losses import multi_head_loss
from real.drafters.eagle import EagleHead, eagle_loss
from real.drafters.medusa import MedusaHeads
from real.model.checkpoint import load_decoder, load_tokenizer, save_decoder
from real.model.decoder import Decoder, DecoderConfig
from real.model.draft_head import save_draft_head, save_vocabulary
from real.model.stored_weights import made_for
from real.model.target import Target
from real.pair import load_pair
from real.record import Settings
from real.sampling import Rule

VOCAB, END, CONTEXT = 48, 2, 256
SHAPE = DecoderConfig(VOCAB, 64, 3, heads=2, kv_heads=1, head_dim=32, hidden=96, tied=False)
DRAFT_TOKENS = torch.arange(1, VOCAB, 2)
HEADS = {"eagle": (EagleHead, eagle_loss), "medusa": (MedusaHeads, multi_head_loss)}


@dataclass(frozen=True)
class World:
    """A folder with target/ and the drafters that `write` has written next to it."""

    folder: Path

    @property
    def target(self) -> Path:
        return self.folder / "target"

    @cached_property
    def decoder(self) -> Decoder:
        return load_decoder(self.target)

    @cached_property
    def identity(self) -> dict:
        return made_for(self.target, self.decoder, load_tokenizer(self.target))

    def write(self, name, place="", steps=0, vocabulary=None, **settings) -> Path:
        """A drafter's folder: a head after `steps` of training, or a model near the target."""
        folder = self.folder / (place or name)
        torch.manual_seed(5)
        if name == "model":
            lm = Decoder(replace(SHAPE, **settings))
            lm.load_state_dict(self.decoder.state_dict(), strict=False)
            for p in lm.requires_grad_(False).parameters():
                p.add_(0.02 * torch.randn(p.shape))
            save_decoder(lm, folder, END, CONTEXT, torch.float32)
            if vocabulary is not None:
                save_vocabulary(vocabulary, folder)
            return folder
        make, loss = HEADS[name]
        head = make(self.decoder, **settings)
        if vocabulary is not None:
            head.restrict(self.decoder, vocabulary)
        train(head, loss, self.decoder, steps)
        save_draft_head(head, folder, name, self.identity, torch.float32)
        return folder

    def drafts(self, name, folder, prompts, K=3):
        """The greedy draft of up to K tokens after each prompt."""
        pair = load_pair(self.folder, name, weights=folder)
        made = []
        for prompt in prompts:
            target = Target(pair.target.decoder, pair.drafter.taps, capacity=64)
            pair.drafter.begin(target, prompt, target.prefill(prompt[:-1]), best)
            steps = (pair.drafter.next() for _ in range(K))
            made.append([step.token for step in steps if step is not None])
        return made

    def record(self, name, folder, prompts, K=3, budget=24):
        """simspec's recording of a drafter's folder on these prompts, greedy."""
        pair = load_pair(self.folder, name, weights=folder)
        settings = Settings(K, budget, Rule(), (END,), drafter_features(pair.drafter))
        return recorded(pair.target, pair.drafter, settings, prompts)


def best(logits, *others):
    """The likeliest token."""
    return int(logits.argmax())


def train(head, loss, decoder, steps):
    """Training on texts of the target; without steps, noise in every weight."""
    if not steps:
        for p in head.requires_grad_(False).parameters():
            p.add_(0.2 * torch.randn(p.shape))
        return
    texts = TrainingBatch(greedy_texts(decoder, 64, 24))
    optimiser, generator = torch.optim.Adam(head.parameters(), lr=5e-3), torch.Generator()
    for _ in range(steps):
        optimiser.zero_grad()
        loss(head, decoder, texts, True, generator).backward()
        optimiser.step()


def greedy_texts(decoder, count, length):
    """The target's greedy continuations `[count, length]` of random prompts of four tokens."""
    text = torch.tensor(random_prompts(count, 1))[:, :4]
    with torch.inference_mode():
        while text.shape[1] < length:
            text = torch.cat((text, decoder(text)[:, -1:].argmax(-1)), 1)
    return text.clone()


def random_prompts(count, seed=0, least=4):
    """Prompts of `least` tokens or more that are no end token; all of `least` by an odd seed."""
    draw = torch.Generator().manual_seed(seed)
    lengths = [least + (0 if seed % 2 else i % 5) for i in range(count)]
    return [torch.randint(4, VOCAB, (n,), generator=draw).tolist() for n in lengths]


def make_world(folder: Path) -> World:
    """A target whose texts vary, with its tokenizer."""
    torch.manual_seed(0)
    decoder = Decoder(SHAPE).requires_grad_(False)
    for p in decoder.parameters():
        p.copy_(torch.randn(p.shape) * 0.2 + (p.ndim == 1))
    decoder.head.weight[END] = 0  # texts run to their budget
    save_decoder(decoder, folder / "target", END, CONTEXT, torch.float32)
    word_tokenizer(sentences(300), VOCAB).save(str(folder / "target" / "tokenizer.json"))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    (folder / "target" / "tokenizer_config.json").write_text(json.dumps(words))
    return World(folder)
