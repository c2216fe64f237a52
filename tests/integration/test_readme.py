"""Every command of the README's ```sh blocks works as it stands, and its metrics table is the catalogue's."""
import os
import re
import subprocess

import pytest
from cluster import BIN, MODEL, ROOT

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


def test_scripts_named_in_the_readme_exist_and_explain_themselves():
    for script in set(re.findall(r"tools/[a-z_]+\.sh", README)):
        run = subprocess.run([os.path.join(ROOT, script), "--help"], capture_output=True, text=True,
                             timeout=60)
        assert run.returncode == 0 and script in run.stdout
