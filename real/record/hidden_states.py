"""Hidden states of a language model along a recorded sequence."""

import numpy as np
import torch

from real.model.decoder import Decoder


@torch.inference_mode()
def hidden_states(lm: Decoder, prompt: list[int], tokens: np.ndarray, ahead: int) -> torch.Tensor:
    """Last hidden states `[n, width]` of one pass over `prompt` and `tokens [n]`.

    Row t predicts token t + `ahead`, 0 or -1; with -1, zeros in front of the prompt's first token.
    """
    inputs = torch.tensor([[*prompt, *tokens[:-1].tolist()]], device=lm.device)
    rotation = lm.rotation(torch.arange(inputs.shape[1], device=lm.device))
    hidden = lm.run(lm.embed(inputs), range(len(lm.layers)), rotation)[0]
    first = len(prompt) - 1 + ahead
    if first >= 0:
        return hidden[first : first + len(tokens)]
    return torch.cat((torch.zeros_like(hidden[:1]), hidden[: len(tokens) - 1]))
