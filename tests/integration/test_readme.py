"""Every command of the README's ```sh blocks works as it stands, and its metrics table is the catalogue's."""
import json
import os
import re
import signal
import subprocess
import urllib.request

import pytest
from cluster import BIN, MODEL, ROOT, wait_until

README = open(os.path.join(ROOT, "README.md"), encoding="utf-8").read()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.S)
            for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("command", COMMANDS)
def test_command(cluster, command):
    command = command.replace("http://127.0.0.1:8000", cluster.url)
    command = command.replace("--model smollm2-135m", f"--model {MODEL}")
    run = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=ROOT, text=True,
                         capture_output=True, timeout=120,
                         env={**os.environ, "PATH": BIN + ":" + os.environ["PATH"]})
    assert run.returncode == 0, f"{command}\n{run.stdout[-1000:]}\n{run.stderr[-1000:]}"
    assert run.stdout.strip() or " > " in command, "it prints something"


def test_metrics_table_is_the_catalogue():
    table = subprocess.run([os.path.join(BIN, "smartgen"), "metrics"], capture_output=True,
                           text=True, check=True).stdout.strip()
    shown = re.search(r"<!-- metrics table.*?-->\n(.*?)<!-- end", README, re.S).group(1).strip()
    assert shown == table, "run: smartgen metrics, and put its output into the README"


def test_quickstart_answers_and_measures():
    run = subprocess.run(["tools/quickstart.sh", "--model", MODEL], cwd=ROOT, text=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, timeout=1200)
    assert run.returncode == 0, run.stdout[-3000:]
    for line in (r"time to first token +\d+ ms", r"time to second token, gap +\d+ ms",
                 r"time to second token, e2e +\d+ ms", r"generation +[\d.]+ tokens/s",
                 r"KV bytes moved to decoded +[\d.]+ MB"):
        assert re.search(line, run.stdout), f"{line}\n{run.stdout[-3000:]}"


def test_up_serves_until_it_is_interrupted(tmp_path):
    ready, log = tmp_path / "ready.json", tmp_path / "up.log"
    with open(log, "wb") as out:
        up = subprocess.Popen([os.path.join(BIN, "smartgen"), "up", "--model", MODEL,
                               "--ready-file", str(ready)], stdin=subprocess.DEVNULL, stdout=out,
                              stderr=out)
    try:
        wait_until(lambda: ready.exists() or up.poll() is not None, 120, "ready, or ended")
        assert up.poll() is None, log.read_text()
        url = json.loads(ready.read_text())["url"]
        with urllib.request.urlopen(url + "/health/ready", timeout=10) as response:
            assert json.load(response)["status"] == "ready"
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0, log.read_text()
        assert not ready.exists(), "nobody takes it for ready any more"
    finally:
        if up.poll() is None:
            up.terminate()
            up.wait(60)


def test_scripts_named_in_the_readme_exist_and_explain_themselves():
    for script in set(re.findall(r"tools/[a-z_]+\.sh", README)):
        run = subprocess.run([os.path.join(ROOT, script), "--help"], capture_output=True, text=True,
                             timeout=60)
        assert run.returncode == 0 and script in run.stdout
