"""A checkpoint folder with a chat tokenizer of toy size."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing
from toy_lm import toy_decoder
from toy_tokenizer import train_tokenizer

from real.files import replace_json
from real.model.checkpoint import save_decoder

BEGIN, END, TURN = "<s>", "</s>", "<|end|>"
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def chat_tokenizer(begin: bool = True) -> Tokenizer:
    """A byte-level tokenizer with special tokens; `begin`: every text starts with `<s>`."""
    tokenizer = train_tokenizer(["what is the answer to this question? It is 42."], 300)
    special = (BEGIN, END, TURN, "<|system|>", "<|user|>", "<|assistant|>")
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    if begin:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{BEGIN} $A",
            pair=f"{BEGIN} $A $B",
            special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))],
        )
    return tokenizer


def save_chat_model(folder: Path, template: str | None = CHAT, begin: bool = True) -> Tokenizer:
    """Writes a random decoder with a chat tokenizer; returns the tokenizer."""
    tokenizer = chat_tokenizer(begin)
    size = tokenizer.get_vocab_size()
    folder.mkdir(parents=True, exist_ok=True)
    save_decoder(toy_decoder(0, vocab=size), folder, tokenizer.token_to_id(END), context=256)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
    } | ({} if template is None else {"chat_template": template})
    replace_json(folder / "tokenizer_config.json", config)
    replace_json(folder / "generation_config.json", {"eos_token_id": tokenizer.token_to_id(TURN)})
    return tokenizer


def write_rows(path: Path, *rows: dict) -> Path:
    """A JSON-lines file of these rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
