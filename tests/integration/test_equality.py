"""W1: the three processes give the tokens of one. equality.py runs the long version.

W13: the prompts are natural text, and where logits nearly tie, another token is no failure."""
import equality


def test_W1_disaggregated_equals_one_process_in_f32():
    prompts = equality.make_prompts(10, longest=1500)
    rows = equality.run(prompts, tokens=8, compute="f32", gap=0.0, spot_checks=2,
                        variants=[v for v in equality.VARIANTS if "8 at a time" in v[0]])
    assert all(not r["different"] for r in rows), rows


def test_W13_disaggregated_equals_one_process_in_bf16_but_for_near_ties():
    prompts = equality.make_prompts(6, longest=600)
    rows = equality.run(prompts, tokens=8, compute="bf16", gap=0.02, spot_checks=1,
                        variants=[equality.VARIANTS[2]])
    assert all(not r["different"] for r in rows), rows
