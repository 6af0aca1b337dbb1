"""docs/public_api.txt is what users find: exported names, parameters, policies, options."""

import importlib.util

from documents import ROOT

spec = importlib.util.spec_from_file_location("public_api", ROOT / "docs" / "public_api.py")
public_api = importlib.util.module_from_spec(spec)
spec.loader.exec_module(public_api)


def test_listed_interface_is_the_one_there_is():
    """A line that goes or changes breaks users: renew the list, and say so in CHANGELOG.md."""
    listed = public_api.LISTED.read_text(encoding="utf-8").splitlines()
    now = public_api.listing().splitlines()
    assert sorted(set(listed) - set(now)) == []
    assert sorted(set(now) - set(listed)) == []
    assert listed == now


def test_control_each_kind_of_change_is_seen():
    class Thing:
        def __init__(self, a, b=1):
            pass

        def kept(self, c):
            pass

        @property
        def shown(self):
            return 1

        def _hidden(self):
            pass

    before = public_api.described("x", Thing)
    assert before == ["x(a, b=1)", "x.kept(c)", "x.shown"]
    Thing.kept = lambda self, c, d: None
    assert public_api.described("x", Thing)[1] == "x.kept(c, d)"
    assert public_api.described("f", lambda first, *, second=2: None) == ["f(first, *, second=2)"]
