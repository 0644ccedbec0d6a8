"""What servers tell of their drafts, in answers and by their counters."""

from pathlib import Path

import yaml
from fake import fakes
from test_servers import bench, lines_of, prompts

from skipbench.contrib.servers.told import acceptance, counters, predicted, since
from skipbench.runs.served import DraftCounts

TOLD = yaml.safe_load(Path(__file__).with_name("told.yaml").read_text())
VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {n}0.0
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {n}00.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {n}5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} 7.0
"""
SGLANG = """sglang:spec_verify_calls_total{engine_type="unified"} 40
sglang:generation_tokens_total{model_name="m",is_streaming="false"} 30
sglang:generation_tokens_total{model_name="m",is_streaming="true"} 75.0
sglang:num_requests_total{model_name="m"} 5.0
"""


def test_acceptance_is_read_as_each_engine_tells_it() -> None:
    for case in TOLD:
        found = acceptance(case["event"])
        assert found == (DraftCounts(*case["told"]) if "told" in case else None), case
    usage = {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 3}
    assert predicted({"completion_tokens_details": usage}) == DraftCounts(None, 8, 5)
    assert predicted({"completion_tokens_details": dict.fromkeys(usage, 0)}) is None
    assert counters(SGLANG) == DraftCounts(40, None, 60)
    assert counters("sglang:num_requests_total 3\n") is None
    assert since(DraftCounts(4, 8, 2), DraftCounts(9, 18, 5)) == DraftCounts(5, 10, 3)
    assert since(DraftCounts(4, 8, 2), DraftCounts(1, 2, 1)) is None  # it began anew


def test_counters_are_read_where_answers_do_not_tell_or_no_verifications(tmp_path: Path) -> None:
    told = {"timings": {"draft_n": 8, "draft_n_accepted": 4}}
    given = {"counters": VLLM}, {"counters": VLLM.replace("vllm", "llamacpp"), "told": told}
    with fakes(*given, {"told": told, "drafts": 5}) as servers:
        urls = [one.url for one in servers]
        records, table = bench(tmp_path, *urls, *prompts(tmp_path, ["one", "two"]))
    assert [r.served.counted for r in records if r.arm in "AB"] == [DraftCounts(10, 100, 10)] * 4
    assert [r.served.told for r in records if r.arm in "BC"] == [DraftCounts(None, 8, 4)] * 4
    shares = [[cells[name] for name in ("accepted share", "M")] for cells in lines_of(table)]
    assert "server 1; drafts=5." in table
    assert shares == [["0.100", "2.00"], ["0.100", "2.00"], ["0.500", "\u2014"]]
