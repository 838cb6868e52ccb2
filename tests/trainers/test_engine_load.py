"""What engines tell of their load: read from a server, added over servers and their starts, and shown as metrics."""

from __future__ import annotations

from agentgym.engine import EngineHealth
from agentgym.trainers.engines.vllm.load import LoadTotals, ServerLoad, read_load
from agentgym.trainers.phases.rollouts import PrefixHits

PAGE = """\
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="agentgym-1"} 2.0
vllm:num_requests_waiting{engine="1",model_name="agentgym-1"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="agentgym-1"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="agentgym-1"} 0.5
vllm:num_preemptions_total{engine="0",model_name="agentgym-1"} 4.0
vllm:num_preemptions_created{engine="0",model_name="agentgym-1"} 1.7e+09
vllm:prefix_cache_queries_total{engine="0",model_name="agentgym-1"} 1e+03
vllm:prefix_cache_hits_total{engine="0",model_name="agentgym-1"} 750.0
"""


def load(queued: int = 0, cache_use: float = 0.1, preempted: int = 0, tokens: int = 0, hits: int = 0) -> ServerLoad:
    return ServerLoad(queued=queued, cache_use=cache_use, preempted=preempted, prefix_tokens=tokens, prefix_hits=hits)


def test_a_page_of_metrics_is_read() -> None:
    assert read_load(PAGE) == load(queued=3, cache_use=0.5, preempted=4, tokens=1000, hits=750)
    assert read_load(PAGE.replace("kv_cache", "gpu_cache")) == read_load(PAGE), "the name before vLLM 0.11"


def test_a_page_without_one_of_the_numbers_tells_nothing() -> None:
    for name in ("num_requests_waiting", "kv_cache_usage_perc", "num_preemptions", "prefix_cache_hits"):
        assert read_load(PAGE.replace(name, "renamed")) is None
    assert read_load("") is None and read_load(PAGE.replace("0.25", "NaN").replace("0.5", "NaN")) is None


def test_servers_are_added_and_a_new_start_goes_on_counting() -> None:
    totals = LoadTotals()
    assert totals.now() == {}
    totals.count("a", load(queued=1, cache_use=0.2, tokens=100, hits=50))
    totals.count("b", load(queued=2, cache_use=0.7, tokens=10, hits=0, preempted=1))
    assert totals.now() == {"queued": 3, "cache_use": 0.7, "preempted": 1, "prefix_tokens": 110, "prefix_hits": 50}
    totals.forget("b")  # it died with its queue
    assert totals.now() == {"queued": 1, "cache_use": 0.2, "preempted": 1, "prefix_tokens": 110, "prefix_hits": 50}
    totals.count("b", load(tokens=5, hits=5))  # its counters began anew
    assert (totals.now()["prefix_tokens"], totals.now()["prefix_hits"]) == (115, 55)
    totals.count("b", load(tokens=25, hits=15))
    assert (totals.now()["prefix_tokens"], totals.now()["prefix_hits"]) == (135, 65)


def test_the_share_is_that_of_the_step() -> None:
    hits = PrefixHits()
    assert hits.since_last(None) == {} and hits.since_last(EngineHealth(running=1)) == {}
    assert hits.since_last(EngineHealth(running=0, prefix_tokens=100, prefix_hits=50)) == {"prefix_hit_share": 0.5}
    assert hits.since_last(EngineHealth(running=0, prefix_tokens=100, prefix_hits=50)) == {}, "nothing was read"
    assert hits.since_last(EngineHealth(running=0, prefix_tokens=200, prefix_hits=150)) == {"prefix_hit_share": 1.0}
