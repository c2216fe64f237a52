"""What deploy/ gives an operator speaks of metrics that exist, with labels that they have."""

import json
import os
import re
import subprocess

import pytest
import yaml

from cluster import BIN, ROOT

_SERIES = re.compile(r"\bsmartgen_(\w+)(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"\bby \(([^)]*)\) \(.*?smartgen_(\w+)", re.S)
# Of the scrape, or of a histogram's buckets.
_ANY = {"job", "instance", "le"}


def catalogue():
    """name -> (type, labels), of `smartgen metrics`."""
    out = subprocess.run(
        [os.path.join(BIN, "smartgen"), "metrics"], capture_output=True, text=True, check=True
    ).stdout
    rows = re.findall(r"^\| `smartgen_(\w+)` \| (\w+) \| ([^|]*) \|", out, re.M)
    assert rows, out
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def dashboard_expressions():
    with open(os.path.join(ROOT, "deploy/grafana/smartgen.json"), encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    return [(p["title"], t["expr"]) for p in panels for t in p.get("targets", [])]


def alert_expressions():
    with open(os.path.join(ROOT, "deploy/prometheus/alerts.yml"), encoding="utf-8") as file:
        groups = yaml.safe_load(file)["groups"]
    return [(r["alert"], r["expr"]) for g in groups for r in g["rules"]]


def complaints(expressions, known):
    wrong = []
    for title, expr in expressions:
        for name, selector in _SERIES.findall(expr):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            kind, labels = known.get(base) or known.get(name) or (None, set())
            if kind is None:
                wrong.append(f"{title}: there is no smartgen_{name}")
            elif (kind == "histogram") != (base != name):
                wrong.append(f"{title}: smartgen_{base} is a {kind}")
            for label in re.findall(r"(\w+)\s*=", selector):
                if label not in labels | _ANY:
                    wrong.append(f"{title}: smartgen_{base} has no label {label}")
        for by, name in _GROUPED.findall(expr):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            for label in re.findall(r"\w+", by):
                if label not in known.get(base, (None, set()))[1] | _ANY:
                    wrong.append(f"{title}: smartgen_{base} has no label {label}")
    return wrong


@pytest.mark.parametrize("expressions", [dashboard_expressions, alert_expressions])
def test_every_expression_asks_for_what_the_daemons_serve(expressions):
    found = expressions()
    assert len(found) > 5
    assert complaints(found, catalogue()) == []


@pytest.mark.parametrize(
    "expr, what",
    [
        ("rate(smartgen_nonsense_total[5m])", "there is no smartgen_nonsense_total"),
        ('smartgen_kv_pages{colour="red"}', "has no label colour"),
        ("sum by (colour) (rate(smartgen_fallback_total[5m]))", "has no label colour"),
        ("rate(smartgen_ttft_seconds[5m])", "is a histogram"),
        ("rate(smartgen_kv_leases_bucket[5m])", "is a gauge"),
    ],
)
def test_a_wrong_expression_is_seen(expr, what):
    assert any(what in c for c in complaints([("panel", expr)], catalogue()))
