"""Metadata of bundled recordings: what is read is written byte by byte."""

from documents import ROOT

from simspec.trace.file import opened
from simspec.trace.meta import TraceMeta


def test_metadata_of_bundled_recordings_is_written_as_it_was_read():
    files = [path for path in (ROOT / "traces").rglob("*.parquet") if ".exits" not in path.name]
    for path in files:
        with opened(path) as (_, extra):
            assert TraceMeta.from_json(extra["meta"]).to_json() == extra["meta"], path
    assert len(files) > 40
