"""Training of the target."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from real.model.checkpoint import save_decoder
from real.model.decoder import Decoder, initialize
from real.model.losses import next_token_loss
from real.progress import Progress, quiet, relabel
from real.train.config import TrainConfig
from real.train.corpus import END, EncodedText, windows
from real.train.trainer import fit, save_loss_curve


def compile_layers(
    layers: Iterable[nn.Module], trial: Callable[[], Tensor], backend: str = "inductor"
) -> str:
    """Compiles each layer in place and tries `trial().backward()`; "" or the reason why not.

    After a failure the layers are uncompiled again. Layers of one kind share one compiled graph:
    seconds, where a whole model takes minutes.
    """
    layers = list(layers)
    for layer in layers:
        layer.compile(backend=backend)
    try:
        trial().backward()
        return ""
    except Exception as error:  # compilers raise anything, and training goes on without them
        for layer in layers:
            layer._compiled_call_impl = None
        return f"not compiled: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        for layer in layers:
            layer.zero_grad(set_to_none=True)


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
