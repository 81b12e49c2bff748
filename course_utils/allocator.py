"""A model of PyTorch's CUDA caching allocator: where blocks lie, so that it can be watched on any machine.

The rules are those of the allocator with its usual settings, for one stream: requests are rounded up, blocks are cut
from segments, a free block joins its free neighbours, and segments go back to the driver only when all of them is free.

Source: PyTorch, c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from course_utils.errors import UsageError
from course_utils.text import human_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KIB, MIB = 1024, 1024**2
ROUNDING = 512  # bytes; every block is a multiple of it
SMALL = MIB  # requests up to this size share small segments
SMALL_SEGMENT = 2 * MIB
MEDIUM = 10 * MIB  # requests above SMALL and below this share segments of LARGE_SEGMENT
LARGE_SEGMENT = 20 * MIB
SEGMENT_ROUNDING = 2 * MIB  # larger requests get a segment of their own, rounded up to this


@dataclass(eq=False)
class Block:
    """A stretch of a segment, free or in use; sizes in bytes."""

    size_bytes: int
    is_free: bool = True


@dataclass(eq=False)
class Segment:
    """What was taken from the driver in one piece, and its blocks from left to right."""

    size_bytes: int
    is_small: bool
    blocks: list[Block] = field(default_factory=list)


class OutOfMemory(UsageError):
    """The driver has no segment of this size left."""


class CachingAllocator:
    """Hands out blocks of a device's memory and keeps what comes back.

    Args:
        capacity_bytes: what the device has.

    Example:
        >>> gpu = CachingAllocator(64 * MIB)
        >>> block = gpu.take(1000)
        >>> gpu.allocated_bytes, gpu.reserved_bytes
        (1024, 2097152)
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.segments: list[Segment] = []

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the blocks in use; ``torch.cuda.memory_allocated()``."""
        return sum(block.size_bytes for segment in self.segments for block in segment.blocks if not block.is_free)

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken from the driver; ``torch.cuda.memory_reserved()``."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def largest_free_bytes(self) -> int:
        """The largest free block, which no request above it can use."""
        return max((b.size_bytes for s in self.segments for b in s.blocks if b.is_free), default=0)

    def take(self, size_bytes: int) -> Block:
        """Return a block of at least ``size_bytes``: the smallest free one that fits, else one of a new segment.

        Raises:
            OutOfMemory: if no free block fits and the device is full, also after all free segments went back.
        """
        if size_bytes < 1:
            raise UsageError("A block has at least one byte.", got=size_bytes)
        size = -(-size_bytes // ROUNDING) * ROUNDING
        is_small = size <= SMALL
        found = self._smallest_that_fits(size, is_small) or self._new_segment(size, is_small)
        segment, block = found
        rest = block.size_bytes - size
        if rest >= (ROUNDING if is_small else SMALL + 1):  # a large block is not cut for a small rest
            segment.blocks.insert(segment.blocks.index(block) + 1, Block(rest))
            block.size_bytes = size
        block.is_free = False
        return block

    def give(self, block: Block) -> None:
        """Take a block back; it joins free neighbours, and its segment stays reserved.

        Raises:
            UsageError: if the block is not in use.
        """
        segment = next((s for s in self.segments if any(b is block for b in s.blocks)), None)
        if segment is None or block.is_free:
            raise UsageError("This block is not in use.", fix="give each block back once")
        block.is_free = True
        joined: list[Block] = []
        for each in segment.blocks:
            if joined and joined[-1].is_free and each.is_free:
                joined[-1].size_bytes += each.size_bytes
            else:
                joined.append(each)
        segment.blocks = joined

    def empty_cache(self) -> None:
        """Give the segments back in which nothing is in use; ``torch.cuda.empty_cache()``."""
        self.segments = [s for s in self.segments if any(not block.is_free for block in s.blocks)]

    def _smallest_that_fits(self, size: int, is_small: bool) -> tuple[Segment, Block] | None:
        fitting = [
            (segment, block)
            for segment in self.segments
            for block in segment.blocks
            if segment.is_small == is_small and block.is_free and block.size_bytes >= size
        ]
        return min(fitting, key=lambda pair: pair[1].size_bytes, default=None)

    def _new_segment(self, size: int, is_small: bool) -> tuple[Segment, Block]:
        rounded = -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING
        length = SMALL_SEGMENT if is_small else LARGE_SEGMENT if size < MEDIUM else rounded
        if self.reserved_bytes + length > self.capacity_bytes:
            self.empty_cache()
        if self.reserved_bytes + length > self.capacity_bytes:
            raise OutOfMemory(
                f"Out of memory: tried to take {human_bytes(size)}.",
                got=f"{human_bytes(self.capacity_bytes)} in all; {human_bytes(self.allocated_bytes)} in use, "
                f"{human_bytes(self.reserved_bytes - self.allocated_bytes)} reserved but free",
                expected=f"a free block or room for a segment of {human_bytes(length)}",
            )
        segment = Segment(length, is_small, [Block(length)])
        self.segments.append(segment)
        return segment, segment.blocks[0]


def draw_segments(ax: Axes, allocator: CachingAllocator) -> Axes:
    """Draw each segment as a bar in MiB, blocks in use filled, free ones empty."""
    for row, segment in enumerate(allocator.segments):
        left = 0.0
        for block in segment.blocks:
            width = block.size_bytes / MIB
            colour = "white" if block.is_free else "#0072b2"
            ax.barh(row, width, left=left, color=colour, edgecolor="#333333", linewidth=0.8, height=0.6)
            left += width
    ax.set_yticks(range(len(allocator.segments)), [f"segment {row}" for row in range(len(allocator.segments))])
    ax.invert_yaxis()
    ax.set(xlabel="MiB", title="in use: filled, free: empty")
    return ax
