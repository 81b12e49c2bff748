"""The model of the caching allocator: rounding, cutting, joining, and what never goes back."""

from __future__ import annotations

import doctest
from itertools import pairwise

import matplotlib.pyplot as plt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils import allocator
from course_utils.allocator import KIB, MIB, Block, CachingAllocator, OutOfMemory, draw_segments
from course_utils.errors import UsageError


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 1, 10 * MIB, 10 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB is too little to cut off
        (25 * MIB + 1, 26 * MIB, 26 * MIB),
    ],
)
def test_requests_are_rounded_and_segments_have_their_sizes(asked, allocated, reserved):
    gpu = CachingAllocator(100 * MIB)
    gpu.take(asked)
    assert (gpu.allocated_bytes, gpu.reserved_bytes) == (allocated, reserved)


def test_what_comes_back_stays_reserved_and_is_used_again():
    gpu = CachingAllocator(100 * MIB)
    block = gpu.take(8 * MIB)
    gpu.give(block)
    assert (gpu.allocated_bytes, gpu.reserved_bytes) == (0, 20 * MIB)
    gpu.take(8 * MIB)
    assert gpu.reserved_bytes == 20 * MIB


def test_the_smallest_block_that_fits_is_taken():
    gpu = CachingAllocator(100 * MIB)
    sizes = [9 * MIB, 2 * MIB, 4 * MIB, 2 * MIB]
    blocks = [gpu.take(size) for size in sizes]
    gpu.give(blocks[0])
    gpu.give(blocks[2])
    assert gpu.take(3 * MIB + 512 * KIB) is blocks[2]


def test_free_neighbours_become_one_block():
    gpu = CachingAllocator(100 * MIB)
    blocks = [gpu.take(4 * MIB) for _ in range(5)]
    for index in (0, 2, 1):
        gpu.give(blocks[index])
    assert gpu.largest_free_bytes == 12 * MIB


def test_empty_cache_gives_back_whole_segments_only():
    gpu = CachingAllocator(100 * MIB)
    blocks = [gpu.take(4 * MIB) for _ in range(10)]  # two segments of 20 MiB
    for block in blocks[1:]:
        gpu.give(block)
    gpu.empty_cache()
    assert (gpu.allocated_bytes, gpu.reserved_bytes) == (4 * MIB, 20 * MIB)


def test_a_request_can_fail_although_enough_is_free():
    gpu = CachingAllocator(40 * MIB)
    blocks = [gpu.take(4 * MIB) for _ in range(10)]
    for block in blocks[::2]:
        gpu.give(block)
    with pytest.raises(OutOfMemory, match="reserved but free") as caught:
        gpu.take(12 * MIB)
    assert "20.0 MiB reserved but free" in str(caught.value)


def test_free_segments_go_back_before_the_device_counts_as_full():
    gpu = CachingAllocator(40 * MIB)
    blocks = [gpu.take(4 * MIB) for _ in range(10)]
    for block in blocks:
        gpu.give(block)
    gpu.take(32 * MIB)
    assert gpu.reserved_bytes == 32 * MIB


def test_blocks_come_back_once_and_have_bytes():
    gpu = CachingAllocator(40 * MIB)
    block = gpu.take(MIB)
    gpu.give(block)
    with pytest.raises(UsageError, match="not in use"):
        gpu.give(block)
    with pytest.raises(UsageError, match="not in use"):
        gpu.give(Block(512))
    with pytest.raises(UsageError, match="at least one byte"):
        gpu.take(0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30 * MIB), st.booleans()), max_size=30))
def test_segments_are_always_filled_without_gaps_or_free_neighbours(actions):
    gpu, held = CachingAllocator(2**40), []
    for size, gives_back in actions:
        held.append(gpu.take(size))
        if gives_back:
            gpu.give(held.pop(0))
    for segment in gpu.segments:
        assert sum(block.size_bytes for block in segment.blocks) == segment.size_bytes
        free = [block.is_free for block in segment.blocks]
        assert not any(a and b for a, b in pairwise(free))
    assert gpu.allocated_bytes == sum(block.size_bytes for block in held)


def test_blocks_are_drawn_one_bar_each():
    gpu = CachingAllocator(40 * MIB)
    first = gpu.take(4 * MIB)
    gpu.take(4 * MIB)
    gpu.give(first)
    figure, ax = plt.subplots()
    draw_segments(ax, gpu)
    assert [patch.get_width() for patch in ax.patches] == [4, 4, 12]
    plt.close(figure)


def test_the_example_in_the_documentation_is_true():
    failed, tried = doctest.testmod(allocator)
    assert (failed, tried > 0) == (0, True)
