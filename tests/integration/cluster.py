"""Starts real daemons on loopback for the tests. Nothing but the standard library."""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("BIN_UNDER_TEST", os.path.join(ROOT, "build", "release", "bin"))
MODEL = os.environ.get("SMARTGEN_TEST_MODEL", "smollm2-135m")
LICENSES = "/usr/share/common-licenses"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def natural_text():
    """Some 60,000 tokens of English prose that every Debian system has."""
    parts = []
    for name in ("GPL-3", "GFDL-1.3", "Apache-2.0", "MPL-2.0", "LGPL-2.1", "GPL-1", "Artistic"):
        with open(os.path.join(LICENSES, name), encoding="utf-8") as f:
            parts.append(f.read())
    return "\n\n".join(parts)


def wait_until(condition, seconds, what, tick=0.05):
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(tick)


class Daemon:
    def __init__(self, name, args, folder):
        self.name = name
        self.log_path = os.path.join(folder, f"{name}-{time.monotonic_ns()}.log")
        self.log = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            [os.path.join(BIN, name.split("-")[0]), *args], stdout=self.log, stderr=self.log)

    def tail(self, lines=30):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return "".join(f.readlines()[-lines:])

    def log_text(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop(self, sig=signal.SIGTERM, seconds=30):
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        return self.process.returncode

    def rss_bytes(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1)) * 1024


def metrics_of(port):
    """{'name{label="x"}': value} of a daemon's /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    out = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.rpartition(" ")
            out[key] = float(value)
    return out


class Cluster:
    """One gateway, one decoded, `prefills` prefilld processes."""

    def __init__(self, prefills=1, prefill_args=(), decode_args=(), gateway_args=(), common=()):
        self.folder = tempfile.mkdtemp(prefix="smartgen-test-")
        self.common = ["--model", MODEL, *common]
        self.prefill_args, self.decode_args = list(prefill_args), list(decode_args)
        self.gateway_args = list(gateway_args)
        self.prefill_ports = [free_port() for _ in range(prefills)]
        self.prefill_data = [free_port() for _ in range(prefills)]
        self.prefill_metrics = [free_port() for _ in range(prefills)]
        self.decode_port, self.decode_metrics = free_port(), free_port()
        self.gateway_port = free_port()
        self.url = f"http://127.0.0.1:{self.gateway_port}"
        self.prefills = [self.start_prefill(i) for i in range(prefills)]
        self.decode = self.start_decode()
        self.gateway = self.start_gateway()

    def start_prefill(self, i):
        return Daemon(f"prefilld-{i}", [
            *self.common, "--listen", f"127.0.0.1:{self.prefill_ports[i]}",
            "--data.listen", f"127.0.0.1:{self.prefill_data[i]}",
            "--metrics.listen", f"127.0.0.1:{self.prefill_metrics[i]}", *self.prefill_args],
            self.folder)

    def prefill_list(self):
        return ",".join(f"127.0.0.1:{p}" for p in self.prefill_ports)

    def start_decode(self):
        args = [*self.common, "--listen", f"127.0.0.1:{self.decode_port}",
                "--metrics.listen", f"127.0.0.1:{self.decode_metrics}", *self.decode_args]
        if self.prefill_ports:
            args += ["--prefill", self.prefill_list()]
        return Daemon("decoded", args, self.folder)

    def start_gateway(self):
        args = ["--model", MODEL, "--listen", f"127.0.0.1:{self.gateway_port}",
                "--decode", f"127.0.0.1:{self.decode_port}", *self.gateway_args]
        if self.prefill_ports:
            args += ["--prefill", self.prefill_list()]
        return Daemon("gateway", args, self.folder)

    def daemons(self):
        return [*self.prefills, self.decode, self.gateway]

    def ready_body(self):
        try:
            with urllib.request.urlopen(self.url + "/health/ready", timeout=10) as response:
                return json.load(response)
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def wait_ready(self, seconds=120, peers=True):
        def ready():
            for daemon in self.daemons():
                if daemon.process.poll() is not None:
                    raise AssertionError(f"{daemon.name} ended with {daemon.process.returncode}:\n"
                                         + daemon.tail())
            return self.ready_body()
        wait_until(ready, seconds, "gateway ready; decoded says:\n" + self.decode.tail())
        if peers and self.prefill_ports:
            wait_until(lambda: self.peers_up() == len(self.prefill_ports), seconds, "pairings")
        return self

    def peers_up(self):
        return sum(v for k, v in metrics_of(self.decode_metrics).items()
                   if k.startswith("smartgen_peer_up"))

    def post(self, path, body, timeout=300):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)

    def pages_used(self):
        """KV pages that requests hold: (decoded, [prefilld...]). Prefix caches do not count."""
        def used(port):
            m = metrics_of(port)
            return sum(m.get(f'smartgen_kv_pages{{state="{s}"}}', 0) for s in ("used", "leased"))
        return used(self.decode_metrics), [used(p) for p in self.prefill_metrics]

    def stop(self):
        codes = [d.stop() for d in (self.gateway, self.decode, *self.prefills)]
        return codes

    def __enter__(self):
        try:
            return self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind, *_):
        codes = self.stop()
        if kind is None:
            assert codes == [0] * len(codes), f"exit codes gateway, decoded, prefilld: {codes}"
