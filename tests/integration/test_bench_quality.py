"""`smartgen bench quality` with real daemons: a small run, complete and equal where it must be."""
import json
import os
import subprocess
import xml.etree.ElementTree

import pytest
from cluster import BIN, MODEL

LENGTH = 640  # beyond the 512 tokens below which every layer is dense


def run(*more):
    return subprocess.run([os.path.join(BIN, "smartgen"), "bench", "quality", "--model", MODEL, *more],
                          capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quality")
    result = run("--lengths", str(LENGTH), "--budgets", "10,100", "--prompts", "1", "--needles", "1",
                 "--depths", "50", "--continuation-tokens", "8", "--compute", "f32",
                 "--json", str(folder / "out.json"), "--svg-dir", str(folder / "svg"))
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads((folder / "out.json").read_text()), result, folder


def test_a_budget_of_100_percent_equals_dense(measured):
    out, result, _ = measured
    assert out["identity_error"] < 1e-3
    whole = [c for c in out["cells"] if c["budget"] == 1 and c["selector"] != "dense"]
    assert [c["selector"] for c in whole] == ["quest", "hata", "infinigen"]
    for cell in whole:
        assert cell["texts"]["largest_absolute"] < 1e-3
        assert cell["needles"]["largest_absolute"] < 1e-3
        assert cell["needles"]["answer_as_dense"] == 1
    assert "Identity" in result.stdout


def test_a_small_budget_selects_something_away(measured):
    out, _, _ = measured
    for cell in out["cells"]:
        if cell["budget"] < 1:
            assert cell["texts"]["largest_absolute"] > 1e-6, cell


def test_every_item_has_a_score_for_every_variant(measured):
    out, _, _ = measured
    assert [i["kind"] for i in out["items"]] == ["text", "needle"]
    for item in out["items"]:
        assert item["prompt_tokens"] == LENGTH
        assert [(s["selector"], s["budget"]) for s in item["scores"]] == [
            ("dense", 1), *((s, b) for s in ("quest", "hata", "infinigen") for b in (0.1, 1))]
        for score in item["scores"]:
            assert "error" not in score
            assert len(score["logprobs"]) == len(score["likeliest"])
            assert all(p <= 0 for p in score["logprobs"])
            assert score["nll"] == pytest.approx(-sum(score["logprobs"]) / len(score["logprobs"]))
    assert len(out["items"][0]["scores"][0]["logprobs"]) == 7, "the first of 8 is the prefill side's"
    needle = out["items"][1]
    assert needle["number"] in needle["sentence"] and needle["depth"] == 0.5
    assert abs(needle["position"] - LENGTH / 2) < 100


def test_the_prompt_was_prefilled_once(measured):
    out, _, _ = measured
    assert out["prefill_prefix_cache"]["on"] is True
    for item in out["items"]:
        assert all(s["cached_tokens"] >= LENGTH - 32 for s in item["scores"][1:])


def test_outputs_are_complete(measured):
    out, result, folder = measured
    assert out["complete"] is True
    assert out["command"].startswith("smartgen bench quality --model")
    assert out["machine"]["cores"] >= 1 and out["date"].endswith("Z")
    assert "random hash weights" in out["selector_parameters"]["in_words"]
    for word in ("| dense ", "| quest ", "| hata ", "| infinigen ", "Needles", "random hash weights"):
        assert word in result.stdout
    assert sorted(os.listdir(folder / "svg")) == [f"quality_needles_{LENGTH}.svg",
                                                  f"quality_nll_{LENGTH}.svg"]
    for name in os.listdir(folder / "svg"):
        xml.etree.ElementTree.parse(folder / "svg" / name)
    assert "%" in result.stderr and "left" in result.stderr


@pytest.mark.parametrize("flags, words", [
    (("--selectors", "quest,best"), ("selectors", "infinigen", '"best"')),
    (("--budgets", "0"), ("budgets", "0.1 to 100", '"0"')),
    (("--lengths", "1024", "--prompts", "1,2"), ("prompts", "each of the 1 lengths")),
    (("--lengths", "1024.5"), ("lengths", "whole numbers", "1024.5")),
    (("--continuation-tokens", "1"), ("continuation-tokens", "2 to 4096")),
    (("--texts", "/nonexistent"), ("/nonexistent",)),
    (("--selector-parameters", "/"), ("selector-parameters", "skew.sgmx")),
])
def test_bad_input_is_refused_with_what_was_expected(flags, words):
    result = run(*flags)
    assert result.returncode != 0
    for word in words:
        assert word in result.stderr
