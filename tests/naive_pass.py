"""The slow twin of a roofline's pass, and random shapes and devices for it."""

from hypothesis import strategies as st

from simspec.cost.shapes import Device, ModelShape

small = st.integers(1, 6)
shapes = st.builds(
    ModelShape,
    st.just("s"),
    st.integers(2, 6),
    small,
    small,
    small,
    small,
    small,
    st.just(5),
    st.booleans(),
    st.sampled_from([1, 2.0, 4]),
)
figures = st.integers(1, 1000).map(float)
seconds = st.integers(0, 8).map(lambda n: n / 8)
devices = st.builds(
    Device,
    st.just("c"),
    figures,
    figures,
    st.just(1e30),
    st.sampled_from([1, 2, 8, 64]),
    seconds,
    seconds,
)
drafters = st.one_of(shapes, st.sampled_from([0.1, 0.5, 0.9]))


def twin(s, device, rows, batch, context, layers=None, head=True):
    """Seconds of a pass, matrix by matrix and row by row."""
    inner, shared = s.heads * s.head_dim, s.kv_heads * s.head_dim
    sizes = [(s.width, inner), (s.width, shared), (s.width, shared), (inner, s.width)]
    sizes += [(s.width, s.hidden), (s.width, s.hidden), (s.hidden, s.width)]
    matrices = sizes * (s.layers if layers is None else layers) + [(s.width, s.vocab)] * head
    padded = 0
    while padded < batch * rows:
        padded += device.tile
    operations = sum(2 * a * b * padded for a, b in matrices)
    moved = sum(a * b * s.weight_bytes for a, b in matrices)
    for _ in range(s.layers if layers is None else layers):
        for _ in range(batch):
            moved += 2 * shared * s.cache_bytes * (context + rows)
            for row in range(rows):
                operations += (
                    s.heads * (context + row + 1) * s.head_dim * 2 * 2
                )  # scores, and the mix of values
    launched = device.overhead + device.launch * (s.layers if layers is None else layers)
    return launched + max(moved / device.bandwidth, operations / device.rate)
