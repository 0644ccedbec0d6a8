"""What servers tell of their drafts, in answers and by their counters."""

from pathlib import Path
from typing import Any

from fake import fakes
from test_servers import bench, lines_of, prompts

from skipbench.contrib.servers.told import acceptance, counters, since
from skipbench.runs.served import DraftCounts

# the last event of an answer, as the engines' documentation has it; llama.cpp's as it came
TOLD: dict[str, tuple[dict[str, Any], DraftCounts | None]] = {
    "vLLM": ({"metrics": {"speculative_decoding": {
        "mean_acceptance_length": 1.2325581395348837, "acceptance_histogram": [39, 1, 0, 3],
        "num_spec_steps": 43, "num_accepted_draft_tokens": 10, "num_draft_tokens": 129,
    }}}, DraftCounts(43, 129, 10, [39, 1, 0, 3])),
    "TensorRT-LLM": ({"choices": [{"index": 0, "finish_reason": "stop", "speculative_decoding": {
        "total_accepted_draft_tokens": 30, "total_draft_tokens": 60, "num_spec_steps": 20,
        "acceptance_histogram": [8, 0, 6, 6],
    }}]}, DraftCounts(20, 60, 30, [8, 0, 6, 6])),
    "SGLang": ({"choices": [], "sglext": {"spec_tokens_details": {
        "spec_verify_ct": 200, "spec_num_proposed_drafts": 1600, "spec_num_correct_drafts": 800,
    }}}, DraftCounts(200, 1600, 800)),
    "llama.cpp": ({"choices": [], "usage": {"completion_tokens": 17}, "timings": {
        "cache_n": 0, "predicted_n": 17, "draft_n": 16, "draft_n_accepted": 11,
    }}, DraftCounts(None, 16, 11)),
    "llama.cpp, none": ({"choices": [], "timings": {"cache_n": 0, "predicted_n": 17}}, None),
    "none": ({"choices": [], "usage": {"completion_tokens": 3}}, None),
    "vLLM, none": ({"metrics": None}, None),
    "impossible": ({"timings": {"draft_n": 3, "draft_n_accepted": 9}}, None),
}  # fmt: skip
VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {n}0.0
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {n}00.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {n}5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} 7.0
"""
LLAMA = """# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_draft_tokens_total {n}6
llamacpp:spec_decode_num_accepted_tokens_total {n}1
llamacpp:spec_decode_num_drafts_total {n}
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} 2
"""
SGLANG = """sglang:spec_verify_calls_total{engine_type="unified"} 40
sglang:generation_tokens_total{model_name="m",is_streaming="false"} 30
sglang:generation_tokens_total{model_name="m",is_streaming="true"} 75.0
sglang:num_requests_total{model_name="m"} 5.0
"""


def test_acceptance_is_read_as_each_engine_tells_it() -> None:
    for name, (event, told) in TOLD.items():
        assert acceptance(event) == told, name
    assert counters(SGLANG) == DraftCounts(40, None, 60)
    assert counters("sglang:num_requests_total 3\n") is None
    assert since(DraftCounts(4, 8, 2), DraftCounts(9, 18, 5)) == DraftCounts(5, 10, 3)
    assert since(DraftCounts(4, 8, 2), DraftCounts(1, 2, 1)) is None  # it began anew


def test_counters_are_read_where_answers_do_not_tell_or_no_verifications(tmp_path: Path) -> None:
    told = {"timings": {"draft_n": 8, "draft_n_accepted": 4}}
    given = {"counters": VLLM}, {"counters": LLAMA, "told": told}, {"told": told}
    with fakes(*given) as servers:
        urls = [one.url for one in servers]
        records, table = bench(tmp_path, *urls, *prompts(tmp_path, ["one", "two"]))
    assert [r.served.counted for r in records if r.arm == "A"] == [DraftCounts(10, 100, 10)] * 2
    assert [r.served.counted for r in records if r.arm == "B"] == [DraftCounts(1, 10, 10)] * 2
    assert [r.served.told for r in records if r.arm in "BC"] == [DraftCounts(None, 8, 4)] * 4
    shares = [[cells[name] for name in ("accepted share", "M")] for cells in lines_of(table)]
    assert shares == [["0.100", "2.00"], ["1.000", "11.0"], ["0.500", "\u2014"]]
