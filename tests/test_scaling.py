"""The model of buckets and network: limits that can be worked out by hand, and a fit that finds what was put in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils.errors import UsageError
from course_utils.scaling import MB, Link, backward_seconds, backward_spans, fit_link, plan_buckets


def test_a_ring_all_reduce_by_hand():
    link = Link(latency_s=0.001, bytes_per_s=100 * MB)
    assert link.all_reduce_s(100 * MB, 2) == pytest.approx(2 * (0.001 + 0.5))
    assert link.all_reduce_s(100 * MB, 1) == 0
    assert link.all_reduce_s(0, 5) == pytest.approx(8 * 0.001)


@given(latency=st.floats(1e-6, 1e-2), bandwidth=st.floats(1e6, 1e11), n=st.integers(2, 16))
def test_a_fit_finds_the_link_behind_exact_times(latency, bandwidth, n):
    sizes = [1e3, 1e5, 1e7, 1e9]
    link = Link(latency, bandwidth)
    found = fit_link(sizes, [link.all_reduce_s(size, n) for size in sizes], n)
    for size in sizes:
        assert found.all_reduce_s(size, n) == pytest.approx(link.all_reduce_s(size, n), rel=1e-3)


@pytest.mark.parametrize("times", [[1e-3, 1e-3, 1.1e-2], [0.5, 0.4, 0.3], [1e-9, 1e-3, 9.0]])
def test_a_fit_of_odd_times_has_no_negative_parts(times):
    link = fit_link([1e3, 1e6, 1e7], times, 2)
    assert link.latency_s >= 0
    assert link.bytes_per_s > 0


@pytest.mark.parametrize(("sizes", "times", "n"), [([1, 2], [1, 2], 1), ([5, 5], [1, 2], 2), ([1, 2, 3], [1, 2], 2)])
def test_too_little_to_fit_is_refused(sizes, times, n):
    with pytest.raises(UsageError, match="can't be fitted"):
        fit_link(sizes, times, n)


def test_buckets_are_filled_from_the_end():
    assert plan_buckets([300, 100, 250, 150, 500, 50], 400) == [[5, 4], [3, 2], [1, 0]]
    assert plan_buckets([3, 2, 1], 100) == [[2, 1, 0]]
    assert plan_buckets([3, 2, 1], 1) == [[2], [1], [0]]
    assert plan_buckets([], 10) == []


def test_a_backward_pass_by_hand():
    link = Link(0.0, 1.0)  # one byte takes one second; two ranks send each byte once
    spans = backward_spans([2, 4], [1.0, 1.0], cap_bytes=1, link=link, n_ranks=2)
    assert [(s.lane, s.bucket, s.start_s, s.end_s) for s in spans] == [
        ("backward", 0, 0.0, 1.0), ("network", 0, 1.0, 5.0), ("backward", 1, 1.0, 2.0), ("network", 1, 5.0, 7.0),
    ]  # fmt: skip
    assert backward_seconds([2, 4], [1.0, 1.0], 1, link, 2) == 7.0
    assert backward_seconds([2, 4], [1.0, 1.0], 1, link, 1) == 2.0
    assert backward_seconds([], [], 1, link, 2) == 0.0


@given(cap=st.floats(0.1, 200))
def test_no_bucket_size_is_quicker_than_backward_or_than_the_network(cap):
    sizes, times, link = [int(MB)] * 10, [0.01] * 10, Link(1e-5, 1e9)
    total = backward_seconds(sizes, times, cap * MB, link, 4)
    assert total >= sum(times)
    assert total >= link.all_reduce_s(sum(sizes), 4) + times[-1]
    assert total <= sum(times) + sum(link.all_reduce_s(size, 4) for size in sizes)
