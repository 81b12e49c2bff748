"""Facts about memory: strides and positions agree with indexing, and bytes are counted where they are made."""

from __future__ import annotations

import itertools
import weakref
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_utils.memory import counting_new_bytes, layout, positions, recording_saved, shares_storage, storage_bytes


def views() -> list[torch.Tensor]:
    x = torch.arange(24.0).view(2, 3, 4)
    return [x, x.permute(2, 0, 1), x[:, 1:, ::2], x[1], x[:1].expand(5, 3, 4), x[:, :, :0], torch.tensor(3.0)]


def test_layout_tells_what_the_tensor_tells():
    x = torch.arange(24, dtype=torch.float64).view(2, 3, 4)[:, 1:, ::2]
    facts = layout(x)
    assert (facts.shape, facts.strides, facts.offset) == ((2, 2, 2), (12, 4, 2), 4)
    assert (facts.element_bytes, facts.storage_bytes, facts.is_contiguous) == (8, 192, False)


@pytest.mark.parametrize("index", range(len(views())))
def test_positions_lead_to_the_elements_in_reading_order(index):
    x = views()[index]
    storage = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    assert [storage[place].item() for place in positions(x)] == x.flatten().tolist()


@given(st.permutations(range(3)), st.integers(1, 3), st.integers(0, 2))
def test_positions_hold_for_any_order_step_and_start(order, step, start):
    x = torch.arange(60).view(3, 4, 5).permute(tuple(order))[start:, ::step]
    assert positions(x) == x.flatten().tolist()  # the storage counts from 0, so a value is its position


def test_views_share_a_storage_and_copies_do_not():
    x = torch.zeros(3, 4)
    assert all(shares_storage(x, view) for view in (x, x.t(), x[1:], x.expand(2, 3, 4), x.detach(), x.view(-1)))
    assert not any(shares_storage(x, copy) for copy in (x.clone(), x[[0]], x + 0, x.t().reshape(-1)))


def test_two_views_that_do_not_overlap_still_share_their_storage():
    x = torch.zeros(4)
    assert shares_storage(x[:2], x[2:])


def test_tensors_without_memory_share_none():
    meta = torch.zeros(3, device="meta")
    empty = torch.zeros(0)
    assert not shares_storage(meta, meta)
    assert not shares_storage(empty, torch.zeros(0))
    assert not shares_storage(meta, torch.zeros(3))


def test_a_shared_storage_counts_once():
    x = torch.zeros(10)  # 40 bytes
    assert storage_bytes([x, x[:2], x.t(), torch.zeros(3, dtype=torch.float64)]) == 40 + 24
    assert storage_bytes([]) == 0


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda x: x.t(), 0),
        (lambda x: x.view(-1), 0),
        (lambda x: x.expand(9, 2, 3), 0),
        (lambda x: x.contiguous(), 0),
        (lambda x: x.to(torch.float32), 0),
        (lambda x: x.add_(1), 0),
        (lambda x: torch.add(x, 1, out=x), 0),
        (lambda x: x.t().contiguous(), 24),
        (lambda x: x.t().reshape(-1), 24),
        (lambda x: x.clone(), 24),
        (lambda x: x + 1, 24),
        (lambda x: ((x + 1) * 2).relu(), 72),
        (lambda x: x.double(), 48),
        (lambda x: torch.zeros(5), 20),
        (lambda x: x.requires_grad_().clone().sum().backward(), None),
    ],
)
def test_new_bytes_are_those_of_the_storages_that_operators_make(operation, expected):
    x = torch.zeros(2, 3)  # 24 bytes
    with counting_new_bytes() as new:
        operation(x)
    assert new.total == expected if expected is not None else new.total >= 28


def test_counting_ends_with_the_block_even_after_an_error():
    with suppress(ZeroDivisionError), counting_new_bytes() as new:
        torch.zeros(4)
        1 / 0  # noqa: B018
    torch.zeros(100)
    assert new.total == 16


def test_blocks_can_be_nested():
    with counting_new_bytes() as outer:
        torch.zeros(1)
        with counting_new_bytes() as inner:
            torch.zeros(2)
    assert (outer.total, inner.total) == (12, 8)


def test_all_orders_of_axes_cost_nothing():
    x = torch.zeros(2, 3, 4)
    with counting_new_bytes() as new:
        results = [x.permute(order) for order in itertools.permutations(range(3))]
    assert new.total == 0
    assert all(shares_storage(x, result) for result in results)


# What autograd saves


def test_saved_bytes_are_told_apart_by_owner_and_each_storage_counts_once():
    layer = torch.nn.Linear(100, 50)
    x = torch.zeros(8, 100, requires_grad=True)
    with recording_saved(layer.parameters(), [x]) as saved:
        hidden = layer(x).relu()
        output = (hidden * hidden).sum()
    assert saved.parameters == 4 * 100 * 50  # the weight, for the gradient of the input; nobody needs the bias
    assert saved.inputs == 4 * 8 * 100
    assert saved.activations == 4 * 8 * 50  # relu and the product share one
    assert saved.total == saved.parameters + saved.inputs + saved.activations
    output.backward()


def test_a_view_counts_as_its_whole_storage():
    base = torch.zeros(1000, requires_grad=True)
    with recording_saved() as saved:
        y = (base.exp()[:10] * 1.0).exp()
    assert saved.activations == 4 * 1000 + 4 * 10
    assert y.shape == (10,)


def test_without_gradients_nothing_is_saved():
    with recording_saved() as saved, torch.no_grad():
        torch.ones(10, requires_grad=True).exp()
    assert saved.total == 0


def test_recording_holds_no_graph_and_ends_with_its_block():
    x = torch.ones(10, requires_grad=True)
    with suppress(ZeroDivisionError), recording_saved() as saved:
        y = x.exp()
        gone = weakref.ref(y)
        del y
        assert gone() is None
        raise ZeroDivisionError
    before = saved.total
    x.exp()
    assert saved.total == before


def test_gradients_are_the_same_under_recording_also_the_second_ones():
    x = torch.tensor(2.0, requires_grad=True)
    with recording_saved():
        y = x.exp() * x**3
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    e = torch.tensor(2.0).exp()
    assert torch.allclose(first, e * (8 + 12))
    assert torch.allclose(second, e * (8 + 12) + e * (12 + 12))
