"""A real vLLM server on SmolLM2: the rounds that it reports are the replay's.

`make test-engines` runs it, for want of time and of memory (3 GB) not `make test`.
"""

import json
import os
import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from test_vllm import ROOT, TARGET, reason_to_skip

from real.engines import RELEASED, find_environment

pytestmark = pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))
K = 3
SPECULATION = {
    "method": "ngram", "num_speculative_tokens": K, "prompt_lookup_min": 1, "prompt_lookup_max": 3
}  # fmt: skip
OPTIONS = (
    "--dtype float32 --load-format safetensors --max-model-len 800 --max-num-seqs 4 "
    "--enforce-eager --no-enable-prefix-caching --per-request-spec-decode-metrics detailed"
)
VARIABLES = {
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "2",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of a server that is ready."""
    python = find_environment(RELEASED["vllm"]).python
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(TARGET),
        "--host", "127.0.0.1", "--port", str(port), *OPTIONS.split(),
        "--speculative-config", json.dumps(SPECULATION),
    ]  # fmt: skip
    environment = os.environ | VARIABLES | dict(RELEASED["vllm"].variables(python))
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as written:
        process = subprocess.Popen(command, stdout=written, stderr=written, env=environment)
        address, began = f"http://127.0.0.1:{port}", time.monotonic()
        try:
            while True:
                assert process.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() - began < 300, log.read_text()[-2000:]
                try:
                    if urlopen(f"{address}/health", timeout=5).status == 200:
                        break
                except (URLError, OSError):
                    time.sleep(1)
            yield address
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.parametrize("concurrent", [1, 4])
def test_rounds_of_the_server_are_the_replays(url, tmp_path, concurrent):
    command = [
        sys.executable, "-m", "simspec.cli", "engine", "server", url, "-k", str(K),
        "--prompts", "8", "--budget", "48", "--concurrent", str(concurrent),
        "--out", str(tmp_path / "served"), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = json.loads(done.stdout)["rounds"]
    assert rounds["equal"]
    assert rounds["left_out"] == 0
    assert rounds["passes"] > 40
    for engine, predicted in rounds["counters"][str(K)].values():
        assert engine == predicted
    wrong = [*command, "-k", str(K + 1)]
    assert subprocess.run(wrong, cwd=ROOT, capture_output=True).returncode == 1
