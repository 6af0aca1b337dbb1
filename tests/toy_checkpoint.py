"""A random target of another architecture with another tokenizer, as a checkpoint folder."""

import json

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs", "run", "by", "sea"]
END_NAMES = ("<eos>", "<turn>")


def word_tokenizer(texts, vocab=48):
    """A whitespace BPE whose end tokens have other names and places than those of simspec train."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "<unk>", *END_NAMES]
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def sentences(count, seed=0, words=12):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, words)) for _ in range(count)]


def qwen2_checkpoint(folder, vocab=48, ends=(2, 3), seed=0, dtype=torch.float32):
    """Writes a random Qwen2 with two end tokens, and its tokenizer; returns the folder."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocab, hidden_size=16, intermediate_size=24, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
        tie_word_embeddings=False, initializer_range=0.4, bos_token_id=None,
        eos_token_id=list(ends)
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).to(dtype)
    model.generation_config.bos_token_id = None
    model.save_pretrained(folder, safe_serialization=True)
    word_tokenizer(sentences(300), vocab).save(str(folder / "tokenizer.json"))
    return folder


def prompt_file(path, count=24, seed=0, words=8):
    """JSON lines of prompts as `simspec record` reads them."""
    rows = [
        {"id": str(i), "task": f"task{i % 3}", "text": " ".join(text.split()[: 2 + i % 7])}
        for i, text in enumerate(sentences(count, seed, words))
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path
