"""Prompts to a running server: planted acceptance and speed are found, faults are one line."""

import json
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from served_vllm import Planted, Steps, serving
from shell import command, refused, simspec
from test_steps import A, B, C, rows_of, write

from simspec.cost.gate import PriceError
from simspec.cost.model import CostModel
from simspec.engines import server as sending
from simspec.engines.served import Prices, Served, lengths_of, served_advice, served_at
from simspec.engines.server import Prompt, Server, ServerError, key_from, serve_prompts
from simspec.engines.steps import round_seconds

RATES = (0.8, 0.6, 0.5)
PLAIN, ROUND = 0.010, 0.013
PROMPTS = [Prompt(f"p{i}", {"messages": [{"role": "user", "content": f"q{i}"}]}) for i in range(24)]
COST = CostModel(np.array([0, 0.2, 0.4, 0.6]), np.array([9, 9.2, 9.4, 9.6]), np.zeros(1), 0.5, 9.0)


def run(folder, planted, plain=None, batches=(1,), tokens=40, seconds=ROUND):
    """The waves of these servers, whose clocks move by planted steps."""
    with ExitStack() as stack:
        address = stack.enter_context(serving(planted))
        servers = [Server(address, key=planted.key, clock=Steps(seconds))]
        if plain is not None:
            servers += [Server(stack.enter_context(serving(plain)), True, clock=Steps(PLAIN))]
        for path in folder.glob("waves.jsonl"):  # of these servers, at another port
            first, *rest = path.read_text().splitlines(keepends=True)
            about = json.loads(first) | {"servers": [server.address for server in servers]}
            path.write_text(json.dumps(about) + "\n" + "".join(rest))
        ask = batches, tokens, folder / "waves.jsonl", lambda _: None
        return serve_prompts(servers, PROMPTS, *ask)


def planted_passes(planted, tokens=40):
    """[passes, 2 + K] with a draft, drafted, accepted by position, and its wave."""
    return [
        np.array(
            [
                (d > 0, d, *(a > j for j in range(len(RATES))))
                for d, a in planted.passes(f"q{i}", tokens)
            ]
        )
        for i in range(len(PROMPTS))
    ]


@pytest.mark.parametrize("figures", ["", "summary", "detailed"])
@pytest.mark.parametrize("matched", [1.0, 0.6])
def test_planted_acceptance_is_found(tmp_path, figures, matched):
    planted = Planted(RATES, matched, figures)
    truth = planted_passes(planted)
    served = served_at(run(tmp_path, planted), 1)
    found = np.column_stack((served.drafts, served.drafted, served.accepted))
    assert found.tolist() == [each.sum(axis=0).tolist() for each in truth]
    assert served.passes.sum() == pytest.approx(
        sum(map(len, truth)), rel=0 if matched == 1 else 0.02
    )


@pytest.mark.parametrize("requests", [1, 3])
def test_planted_speedup_is_found(tmp_path, requests):
    planted = Planted(RATES, 0.6)
    waves = run(tmp_path, planted, Planted(), (requests,))
    passes = np.array([len(each) for each in planted_passes(planted)]).reshape(-1, requests)
    truth = 39 * PLAIN * len(passes) / (passes.max(axis=1).sum() * ROUND)
    (*others, last) = lengths_of(served_at(waves, requests), None)
    assert (last.K, last.measured.value) == (3, pytest.approx(truth))
    assert truth in last.measured
    assert last.measured.low < last.measured.high
    assert [row.measured for row in others] == [None, None]
    (sentence,) = served_advice(waves, {requests: None}).sentences
    assert "it pays; which K up to 3 pays best needs --cost" in sentence


def drawn(seed, waves=24, matched=0.6):
    """A server's waves whose acceptance, and seconds of a pass, are random."""
    draws = np.random.default_rng(seed)
    passes = draws.integers(15, 40, waves)
    drafts = draws.binomial(passes, matched)
    kept = [(draws.random((n, 3)) < RATES).cumprod(axis=1).sum(axis=0) for n in drafts]
    tokens = passes + np.sum(kept, axis=1)
    seconds = passes * 0.013 * draws.lognormal(0, 0.1, waves)
    plain = tokens * 0.010 * draws.lognormal(0, 0.1, waves)
    timed = np.stack([plain, tokens, seconds, tokens], axis=1)
    return Served(1, *(x * 1.0 for x in (passes, drafts, 3 * drafts, np.array(kept))), timed)


def test_intervals_cover_the_truth():
    marginal = np.cumprod(RATES)
    inside = np.zeros(4)
    for seed in range(120):
        rows = lengths_of(drawn(seed), Prices.of(COST, 1, "c"))
        tokens = 1 + 0.6 * marginal.cumsum()
        inside += [
            tokens[2] in rows[2].tokens, marginal[1] in rows[1].accepted,
            tokens[2] * 10 / 13 in rows[2].measured,
            tokens[1] * 9 / (9.5 + 0.6 * 0.8) in rows[1].predicted,
        ]  # fmt: skip
    # of 95%: below 86% in 120 draws once in 10^4 figures
    assert (inside >= 0.86 * 120).all(), inside


def test_prediction_is_that_of_the_passes_one_by_one(tmp_path):
    planted = Planted(RATES, 0.6, "detailed")
    served = served_at(run(tmp_path, planted), 1)
    hidden = sum(map(len, planted_passes(planted))) - served.passes.sum()
    rounds = COST.draft + COST.verify + COST.overhead
    for row in lengths_of(served, Prices.of(COST, 1, "c")):
        spent = committed = 0.0
        for drafts, _, *accepted in np.concatenate(planted_passes(planted)):
            spent += rounds[row.K if drafts else 0]
            committed += 1 + sum(accepted[: row.K])
        truth = (committed - hidden) * COST.baseline / (spent - hidden * rounds[0])
        assert row.predicted.value == pytest.approx(truth)


def test_a_schedule_is_a_setting_where_numbers_of_requests_differ(tmp_path):
    waves = run(tmp_path, Planted(RATES), batches=(1, 2))
    slow = replace(COST, verify=np.array([9.0, 14, 19, 24]))
    advice = served_advice(waves, {1: Prices.of(COST, 1, "c"), 2: Prices.of(slow, 1, "c")})
    assert advice.setting["num_speculative_tokens"] == 3
    assert advice.setting["num_speculative_tokens_per_batch_size"][0] == [1, 1, 3]
    assert advice.sentences[0].startswith("1 request in flight: K = 3 commits")
    costly = replace(COST, verify=np.array([9.0, 30, 40, 50]))
    advice = served_advice(waves, {1: Prices.of(costly, 1, "c")})
    assert (advice.setting, advice.sentences[0][-12:]) == (None, "do not draft")
    with pytest.raises(ValueError, match="prices one request, --batch is 2"):
        Prices.of(COST, 2, "c")


def test_no_speedup_above_tokens_a_pass_is_told(tmp_path):
    waves = run(tmp_path, Planted(RATES), Planted(), seconds=PLAIN / 2)
    with pytest.raises(PriceError, match="which no round can reach: the clock was disturbed"):
        served_advice(waves, {1: None})
    cheap = replace(COST, verify=np.full(4, 2.0))
    with pytest.raises(PriceError, match="measure the costs again"):
        served_advice(waves, {1: Prices.of(cheap, 1, "c")})


def test_prices_of_a_step_log_are_its_fit(tmp_path):
    seconds = round_seconds(write(tmp_path / "steps.jsonl", rows_of(3)), 4)
    assert seconds[0] == pytest.approx(A + B * 4 + C * 4 * np.arange(5), rel=0.1)
    assert (seconds[1:].min(axis=0) < seconds[0]).all()
    assert (seconds[0] < seconds[1:].max(axis=0)).all()
    alike = write(tmp_path / "alike.jsonl", rows_of(1, sizes=(4,), matched=1))
    for path, n, reason in (
        (alike, 4, "prices no drafted token"),
        (tmp_path / "steps.jsonl", 5, "up to 4"),
    ):
        with pytest.raises(ValueError, match=reason):
            round_seconds(path, n)


@pytest.mark.parametrize("figures", ["", "summary"])
def test_other_users_decide_nothing_and_the_call_goes_on(tmp_path, figures):
    busy = Planted(RATES, figures=figures)

    def joined(handler):  # after half of the answers
        busy.others = 5 * (len(busy.seen) > 40)

    busy.hook = joined
    with pytest.raises(ServerError, match="answers others too, so nothing is decided"):
        run(tmp_path, busy)
    kept = (tmp_path / "waves.jsonl").read_text().splitlines()
    assert 5 < len(kept) < len(PROMPTS)
    with open(tmp_path / "waves.jsonl", "a") as file:
        file.write(kept[-1][:100])  # half a line of a kill
    alone = Planted(RATES, figures=figures)
    waves = run(tmp_path, alone)
    assert len(waves) == len(PROMPTS)
    asked = sum(path == "/v1/chat/completions" for path, *_ in alone.seen)
    assert asked == 1 + len(PROMPTS) - (len(kept) - 1)
    quiet = Planted(RATES, figures=figures)
    assert (run(tmp_path, quiet), quiet.seen) == (waves, [])
    with pytest.raises(ValueError, match="it is of other servers, prompts, --budget or --model"):
        run(tmp_path, quiet, tokens=41)


def broken(at, *answer, **headers):
    """A server that gives this answer from the 20th request on, at that path."""

    def hook(handler):
        if len(handler.planted.seen) < 20 or at not in handler.path:
            return False
        if answer:
            handler.answer(*answer, **headers)
        return True  # else the connection closes without a word

    return Planted(RATES, hook=hook)


def restarted(handler):
    if len(handler.planted.seen) == 31 and handler.path == "/metrics":
        handler.planted.counts.clear()


KEY = "sk-secret"
STREAM = "text/event-stream"
FAULTS = [
    (broken("completions"), "does not answer"),
    (broken("completions", 200, "<html>", "text/html"), "text/html, expected a stream of events"),
    (broken("completions", 200, 'data: {"choices": [{}]}\n\n', STREAM), "the answer broke off"),
    (broken("completions", 200, 'data: {"error": {"message": "sk-secret"}}\n\n', STREAM), "'KEY'"),
    (broken("completions", 200, "data: [" * 9, STREAM), "no event of vLLM"),
    (broken("completions", 200, "x" * (1 << 17), STREAM), "answers over 65,536 bytes"),
    (broken("completions", 400, '{"message": "sk-secret is wrong"}'), 'HTTP 400, {"message": "KEY'),
    (broken("completions", 502, "<html>"), "HTTP 502, a page"),
    (broken("metrics", 200, "x" * (1 << 17)), "answers over 65,536 bytes"),
    (broken("metrics", 307, "", Location="http://elsewhere"), "redirects (HTTP 307)"),
    (broken("metrics", 200, "vllm:generation_tokens_total -1\n"), "is no counter"),
    (Planted(RATES, key="other"), "refuses the key of VLLM_API_KEY or OPENAI_API_KEY (HTTP 401)"),
    (Planted(RATES, models=("a", "b")), "serves a, b: say which with --model"),
    (Planted(RATES, hook=restarted), "counts less than before: a restart?"),
    (Planted(RATES, others=-3), "it is of another process, such as one of several replicas"),
]  # fmt: skip


@pytest.mark.parametrize("planted,reason", FAULTS, ids=range(len(FAULTS)))
def test_faults_are_one_line_without_the_key(tmp_path, monkeypatch, planted, reason):
    for name, value in (("MOST_ANSWER", 1 << 16), ("MOST_BODY", 1 << 16), ("PAUSE", 0)):
        monkeypatch.setattr(sending, name, value)
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    (tmp_path / "p.jsonl").write_text("".join(row(i) for i in range(24)))
    with serving(planted) as address:
        code, out, error = command(tmp_path, *asked(address))
    assert (code, out, error.count("\n")) == (2, "", 1), error
    assert reason in error, error
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*.*"))
    assert KEY not in error


def row(i):
    return json.dumps({"id": f"p{i}", "task": "t", "text": f"q{i}"}) + "\n"


def asked(address, *options):
    return (
        "advise",
        "vllm",
        "--url",
        f"{address}/v1",
        "--prompts",
        "p.jsonl",
        "--out",
        "o",
        *options,
    )


def test_the_command_predicts_measures_and_continues(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    (tmp_path / "p.jsonl").write_text("".join(row(i) for i in range(24)))
    COST.to_json(tmp_path / "c.json")
    write(tmp_path / "steps.jsonl", rows_of(3))
    planted = Planted(RATES, key=KEY)
    with serving(planted) as address:
        plan, _ = simspec(*asked(address, "--dry-run", "--json"), cwd=tmp_path)
        assert json.loads(plan)["rows"][0]["requests"] == 25
        assert "Authorization with the value of VLLM_API_KEY" in plan
        assert KEY not in plan
        assert (planted.seen, (tmp_path / "o").exists()) == ([], False)
        told, _ = simspec(*asked(address), cwd=tmp_path, code=1)
        assert "not settled, only acceptance is known; --plain-url prices it" in told
        assert {body["temperature"] for _, _, body in planted.seen if body} == {0}
        sent = len(planted.seen)
        told, _ = simspec(*asked(address, "--cost", "c.json"), cwd=tmp_path)
        assert "serve K = 3; --plain-url confirms it" in told
        setting = (tmp_path / "o" / "setting.json").read_text()
        assert json.loads(setting) == {"num_speculative_tokens": 3}
        assert "serve K = 3" in (tmp_path / "o" / "report.html").read_text()
        told, _ = simspec(*asked(address, "--log", "steps.jsonl", "--json"), cwd=tmp_path)
        assert json.loads(told)["rows"][2]["predicted [95%]"]["value"] > 1.5
        assert len(planted.seen) == sent
        told, _ = simspec(
            *asked(address, "--raw")[:-3], "--out", "r", "--raw", cwd=tmp_path, code=1
        )
        assert planted.seen[-2][0] == "/v1/completions"
    plain = Planted(RATES)
    with serving(plain) as other, serving(Planted(RATES)) as address:
        words = "drafts, expected a server without drafts"
        code, _, error = command(
            tmp_path, *asked(address, "--plain-url", other)[:-4], "--out", "x", "--plain-url", other
        )
        assert (code, words in error) == (2, True)
    for stop, words in ((1, "the server drafted nothing"), (1 << 20, "no acceptance by position")):
        hidden = Planted(RATES, stop=stop)
        if stop > 1:
            hidden.hook = lambda handler: (
                handler.path == "/metrics" and (handler.answer(404, ""), True)[1]
            )
        with serving(hidden) as address:
            code, _, error = command(tmp_path, *asked(address)[:-1], f"s{stop}")
            assert (code, words in error) == (2, True), error


REFUSED = [
    (("--url", "ftp://h"), "no http or https address"),
    (("--url", "http://u:secret@h"), "it holds more than a host"),
    (("--url", "http://h/a b"), "no address has"),
    (("--url", "http://h", "--draft-model", "d"), "leave --draft-model and --policy out"),
    (("--url", "http://h", "--log", "p.jsonl"), "or --log of a server's steps"),
    (("--url", "http://h", "--plain-url", "http://h/v1"), "the same server"),
    (("--plain-url", "http://h"), "need --url"),
]


@pytest.mark.parametrize("options,reason", REFUSED, ids=range(len(REFUSED)))
def test_refusals(tmp_path, options, reason):
    (tmp_path / "p.jsonl").write_text("".join(row(i) for i in range(24)))
    refused(
        tmp_path, "advise", "vllm", "--prompts", "p.jsonl", "--out", "o", *options, words=reason
    )
    (tmp_path / "p.jsonl").write_text(row(1))
    refused(
        tmp_path,
        "advise",
        "vllm",
        "--prompts",
        "p.jsonl",
        "--out",
        "o",
        "--url",
        "http://h",
        words="gives 1 prompts",
    )


def test_a_key_that_no_header_holds_is_not_shown():
    assert key_from({"VLLM_API_KEY": "a", "OPENAI_API_KEY": "b"}) == ("VLLM_API_KEY", "a")
    with pytest.raises(ValueError, match="no header can") as caught:
        key_from({"OPENAI_API_KEY": "sec\nret"})
    assert "sec" not in str(caught.value)
