"""Training of the target."""

from dataclasses import replace
from pathlib import Path

import torch

from real.model.checkpoint import save_decoder
from real.model.decoder import Decoder
from real.model.initialization import initialize
from real.model.losses import next_token_loss
from real.progress import Progress, quiet, relabel
from real.train.compilation import compile_layers
from real.train.config import TrainConfig
from real.train.corpus import END, windows
from real.train.loss_curve import save_loss_curve
from real.train.trainer import fit
from real.train.training_text import EncodedText


def train_target(
    config: TrainConfig, text: EncodedText, out: Path, work: Path, progress: Progress = quiet
) -> None:
    """Trains the target into `<out>/target`, unless it exists."""
    folder = out / "target"
    if (folder / "model.safetensors").exists():
        return
    decoder = Decoder(replace(config.target, vocab=config.vocab))
    schedule, device = config.target_plan, torch.device(config.device)
    initialize(decoder, config.seed)
    decoder.to(device)

    def loss(step: int) -> torch.Tensor:
        rows = windows(text.tokens, schedule.rows, schedule.length, schedule.seed, step)
        batch = torch.from_numpy(rows).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.autocast):
            logits = decoder(batch[:, :-1])
        return next_token_loss(logits, batch[:, 1:])

    if config.compiled and (note := compile_layers(decoder.layers, lambda: loss(0))):
        progress("target", 0, 1, note)
    log = fit(work / "target", decoder, loss, schedule, relabel(progress, "target"))
    save_loss_curve(log, work / "target.png", "target: training loss")
    save_decoder(decoder, folder, text.tokenizer.token_to_id(END), schedule.length)
