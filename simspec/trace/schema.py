"""The arrays of a trace: names, dtypes and shapes."""

ARRAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "offset": ("int64", ("S+1",)),
    "budget": ("int64", ("S",)),
    "prompt_offset": ("int64", ("S+1",)),
    "prompt": ("int32", ("P",)),
    "sequence": ("int64", ("S",)),
    "token": ("int32", ("N",)),
    "depth": ("uint8", ("N",)),
    "run": ("uint8", ("N",)),
    "feature": ("uint8", ("N", "K", "F")),
    "rank": ("uint8", ("N", "K")),
    "margin": ("uint8", ("N",)),
    "draft_margin": ("uint8", ("N", "K")),
    "feature_margin": ("uint8", ("N", "K")),
    "ratio": ("float32", ("N", "K")),
    "order": ("uint8", ("N", "K")),
    "beam": ("uint8", ("N", "2")),
}
"""Name: (dtype, axes). S sequences, N rows, P prompt tokens, K draft slots, F features."""

OPTIONAL = ("rank", "margin", "draft_margin", "feature_margin", "ratio", "order", "beam")
BY_SEQUENCE = tuple(name for name, (_, axes) in ARRAYS.items() if "N" not in axes)
BY_ROW = tuple(name for name, (_, axes) in ARRAYS.items() if "N" in axes)
