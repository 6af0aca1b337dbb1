"""Graph capture: replays repeat the captured work on current values; a simulated GPU refuses what
a GPU would."""

import gc
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from test_decoder import RICH
from toy_lm import toy_decoder

from real.model.captured_passes import CapturedPasses, CaptureError, capture, compiled_layers
from real.model.decoder import Decoder, DecoderLayer, StaticKVCache
from real.model.passes import Span

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def test_replay_reads_and_writes_the_captured_tensors():
    x, kept = torch.arange(4.0), torch.zeros(4)

    def function():
        kept.index_copy_(0, torch.arange(2), (x * 2)[:2])
        return x.view(2, 2).sum(0), kept + 1

    replay = capture(function, CPU)
    first = replay()
    assert first[0].tolist() == [2, 4]
    assert kept.tolist() == [0, 2, 0, 0]
    x += 10
    again = replay()
    assert [a is b for a, b in zip(first, again)] == [True, True]  # the same memory, overwritten
    assert again[0].tolist() == [22, 24]
    assert kept.tolist() == [20, 22, 0, 0]
    assert again[1].tolist() == [21, 23, 1, 1]


def test_a_graph_keeps_the_inputs_whose_addresses_it_holds(monkeypatch):
    """Torch's graph does not: freed inputs were overwritten, and a kernel indexed by garbage."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {
        "Stream": lambda device: stream,
        "current_stream": lambda device: stream,
        "stream": lambda of: nullcontext(),
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
        "graph": lambda made, pool=None: nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)

    def captured():
        read = torch.ones(3)
        inputs.append(weakref.ref(read))
        return capture(lambda: (read + 1,), torch.device("cuda"))

    inputs: list = []
    replay = captured()
    gc.collect()
    assert inputs[0]() is not None
    del replay
    gc.collect()
    assert inputs[0]() is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * float(x[0]),
        lambda x: x[: int(x.argmax())],
        lambda x: x + torch.tensor([1.0, 2.0]),
        lambda x: x * x.tolist()[0],
    ],
)
def test_uncapturable_work_is_refused(function):
    x = torch.arange(2.0)
    with pytest.raises(CaptureError, match="a captured pass"):
        capture(lambda: (function(x),), CPU)


def _rows(decoder: Decoder, seed: int):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 3, decoder.config.width, generator=random, dtype=decoder.dtype)
    cache = decoder.cache(capacity=8)
    for rows in (cache.key, cache.value):
        rows.normal_(generator=random)
    window = StaticKVCache(cache.key, cache.value, torch.tensor([2, 3, 4]))
    mask = torch.zeros(3, 8, dtype=decoder.dtype).masked_fill(
        torch.arange(8) > torch.tensor([[2], [3], [4]]), -torch.inf
    )
    return x, decoder.rotation(torch.arange(2, 5)), mask, window


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", ["plain", "rich"])
def test_fused_layers_equal_plain_layers(shape, packed):
    torch.manual_seed(0)
    decoder = toy_decoder(3) if shape == "plain" else Decoder(RICH).double().requires_grad_(False)
    x, rotation, mask, window = _rows(decoder, 1)
    plain = decoder.run(x, range(len(decoder.layers)), rotation, mask, window)
    keys = window.key.clone()
    x, rotation, mask, window = _rows(decoder, 1)
    if packed:
        for layer in decoder.layers:
            layer.fuse_projections()
    compiled = []
    with compiled_layers(backend="aot_eager") as layer_forward:
        window.layer_forward = lambda *args: compiled.append(1) or layer_forward(*args)
        output = decoder.run(x, range(len(decoder.layers)), rotation, mask, window)
    assert len(compiled) == len(decoder.layers)
    assert torch.allclose(output, plain, rtol=0, atol=1e-12)
    assert torch.allclose(window.key, keys, rtol=0, atol=1e-12)


def test_capture_leaves_other_decoders_unchanged():
    decoder, other = toy_decoder(3), toy_decoder(4)
    forward, token, checked = DecoderLayer.forward, torch.arange(6)[None], []
    wanted = other(token)

    class Compiled(CapturedPasses):  # no tape: it would keep the compiler out
        def _replayed(self, graph):
            with compiled_layers(backend="aot_eager") as layer_forward:
                return graph.function(layer_forward)

    passes = Compiled((1,), 64)

    def body(x, span):
        checked.append(DecoderLayer.forward is forward and torch.equal(other(token), wanted))
        return (span.through(decoder, decoder.embed(x), range(len(decoder.layers))),)

    cache = passes.cache("target", decoder, len(decoder.layers), 64)
    passes.run("body", decoder, body, [[5]], Span(0, 1), cache)
    assert checked == [True]
