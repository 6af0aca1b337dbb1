"""Large files carried in pieces: joined as they were, refused where damaged, resumed."""

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pieces import MANIFEST, PiecesError, app, join, split
from typer.testing import CliRunner


def _source(folder, data):
    path = folder / "model.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@given(st.binary(min_size=1, max_size=100), st.integers(1, 40), st.data())
def test_pieces_join_to_the_file_in_any_order_of_arrival(tmp_path_factory, data, size, choose):
    folder = tmp_path_factory.mktemp("pieces")
    pieces = split(_source(folder, data), folder / "all", size)
    assert sum(path.stat().st_size for path in pieces) == len(data)
    assert max(path.stat().st_size for path in pieces) <= size
    left, out, store = choose.draw(st.permutations(pieces)), folder / "out.gguf", folder / "store"
    while left:
        count = choose.draw(st.integers(1, len(left)))
        shutil.rmtree(folder / "call", ignore_errors=True)
        (folder / "call").mkdir()
        shutil.copy(folder / "all" / MANIFEST, folder / "call")
        for path in left[:count]:
            shutil.copy(path, folder / "call")
        left = left[count:]
        assert set(join(folder / "call", store, out)) == {path.name for path in left}
        assert out.exists() == (not left)
    assert out.read_bytes() == data
    assert join(folder / "call", store, out) == []


@pytest.fixture
def pieces(tmp_path):
    split(_source(tmp_path, bytes(range(100))), tmp_path / "all", 40)
    return tmp_path


def test_a_damaged_piece_is_refused(pieces):
    (pieces / "all" / "model.gguf.01").write_bytes(bytes(40))
    with pytest.raises(PiecesError, match="model.gguf.01 is damaged"):
        join(pieces / "all", pieces / "store", pieces / "out")
    assert not (pieces / "out").exists()


def test_a_damaged_stored_piece_is_fetched_again(pieces):
    (pieces / "store").mkdir()
    (pieces / "store" / "model.gguf.00").write_bytes(b"cut")
    assert join(pieces / "all", pieces / "store", pieces / "out") == []
    assert (pieces / "out").read_bytes() == bytes(range(100))


def test_pieces_of_another_file_are_refused(pieces):
    join(pieces / "all", pieces / "store", pieces / "out")
    split(_source(pieces / "other", bytes(100)), pieces / "others", 40)
    with pytest.raises(PiecesError, match="pieces of another file"):
        join(pieces / "others", pieces / "store", pieces / "out")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../model.gguf"},
        {"name": ".hidden"},
        {"bytes": 99},
        {"pieces": []},
        {"pieces": [{"bytes": -1, "sha256": "0" * 64}]},
        {"sha256": "0"},
    ],
)
def test_an_invalid_manifest_is_refused(pieces, change):
    path = pieces / "all" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(PiecesError, match="no manifest of pieces"):
        join(pieces / "all", pieces / "store", pieces / "out")
    assert not (pieces / "store").exists()


def test_split_again_keeps_whole_pieces(pieces):
    first = pieces / "all" / "model.gguf.00"
    before = first.stat().st_mtime_ns
    (pieces / "all" / "model.gguf.02").unlink()
    assert len(split(pieces / "model.gguf", pieces / "all", 40)) == 3
    assert first.stat().st_mtime_ns == before
    assert (pieces / "all" / "model.gguf.02").exists()


def test_the_commands_split_and_join(tmp_path):
    source, shell = _source(tmp_path, bytes(50)), CliRunner()
    folders = [str(tmp_path / name) for name in ("all", "store", "out.gguf")]
    assert "1 pieces" in shell.invoke(app, ["split", str(source), folders[0]]).output
    (tmp_path / "all" / "model.gguf.00").rename(tmp_path / "kept")
    done = shell.invoke(app, ["join", *folders])
    assert done.exit_code == 3
    assert "missing model.gguf.00" in done.output
    (tmp_path / "kept").rename(tmp_path / "all" / "model.gguf.00")
    assert "complete" in shell.invoke(app, ["join", *folders]).output
    assert (tmp_path / "out.gguf").read_bytes() == bytes(50)


def test_a_missing_file_is_refused_in_one_line(tmp_path):
    done = CliRunner().invoke(app, ["split", str(tmp_path / "none"), str(tmp_path / "all")])
    assert done.exit_code == 2
    assert len(done.output.strip().splitlines()) == 1
