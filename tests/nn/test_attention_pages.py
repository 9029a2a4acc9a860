"""However the pages of a batch lie, reading gives the tokens in order and writing changes the new ones only."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_rt.nn.attention_pages import COPY_BYTES, EvenPages, ScatteredPages, lay_out

NUM_PAGES, HEADS, HEAD_DIM = 60, 2, 3


@st.composite
def page_lists(draw: st.DrawFn) -> list[list[int]]:
    """Pages of 1 to 6 sequences: consecutive from drawn starts, evenly or not, or anywhere; none twice."""
    num_each = draw(st.integers(1, 4))
    num_sequences = draw(st.integers(1, 6))
    if draw(st.booleans()):
        slots = draw(st.permutations(range(NUM_PAGES // num_each)))[:num_sequences]
        slots = sorted(slots) if draw(st.booleans()) else slots
        return [[slot * num_each + page for page in range(num_each)] for slot in slots]
    if draw(st.booleans()):
        stride = draw(st.integers(num_each, NUM_PAGES // num_sequences))
        return [[number * stride + page for page in range(num_each)] for number in range(num_sequences)]
    pages = draw(st.permutations(range(NUM_PAGES)))
    return [list(pages[number * num_each : (number + 1) * num_each]) for number in range(num_sequences)]


@settings(max_examples=200)
@given(lists=page_lists(), page_size=st.integers(1, 5), data=st.data(), big_tokens=st.booleans())
def test_read_and_write(lists: list[list[int]], page_size: int, data: st.DataObject, big_tokens: bool) -> None:
    num_each = len(lists[0])
    length = data.draw(st.integers((num_each - 1) * page_size + 1, num_each * page_size))
    num_new = data.draw(st.integers(0, length))
    kv = torch.randn(2, 2, NUM_PAGES, page_size, HEADS, HEAD_DIM)
    layer = data.draw(st.integers(0, 1))
    stored = torch.stack([kv[layer][:, ids].flatten(1, 2)[:, :length] for ids in lists], dim=1)
    new = torch.randn(2, len(lists), num_new, HEADS, HEAD_DIM)
    before = kv.clone()

    # Tokens so big that every run of evenly lying sequences is worth a call of its own, or so small that none is.
    parts = list(lay_out(lists, page_size, length, num_new, 10**9 if big_tokens else 1))
    assert [number for run, _ in parts for number in run] == list(range(len(lists)))
    for run, layout in parts:
        tokens, here = layout.open(kv, num_new), slice(run.start, run.stop)
        assert torch.equal(torch.stack(tokens.read(layer)), stored[:, here])
        tokens.write(layer, *new[:, here])
        expected = torch.cat([stored[:, here, : length - num_new], new[:, here]], dim=2)
        assert torch.equal(torch.stack(tokens.read(layer)), expected)
    for number, ids in enumerate(lists):
        for position in range(length - num_new, length):
            before[layer, :, ids[position // page_size], position % page_size] = new[:, number, position - length]
    assert torch.equal(kv, before)


def test_evenly_lying_sequences_are_one_view() -> None:
    kv = torch.zeros(1, 2, 20, 4, HEADS, HEAD_DIM)
    ((run, layout),) = lay_out([[2, 3, 4], [7, 8, 9], [12, 13, 14]], 4, 11, 4, token_bytes=1)
    assert run == range(3)
    assert layout == EvenPages(first_page=2, stride_pages=5, num_sequences=3, length=11)
    keys, values = layout.open(kv, 4).read(0)
    assert (keys.data_ptr(), values.data_ptr()) == (kv[0, 0, 2].data_ptr(), kv[0, 1, 2].data_ptr())


def test_short_runs_of_small_tokens_are_copied_and_long_or_big_ones_are_not() -> None:
    uneven = [[0, 1], [4, 5], [6, 7], [12, 13]]
    ((_, layout),) = lay_out(uneven, 4, 8, 4, token_bytes=1)
    assert isinstance(layout, ScatteredPages)
    parts = list(lay_out(uneven, 4, 8, 4, token_bytes=10**6))
    assert [(run, type(layout)) for run, layout in parts] == [(range(2), EvenPages), (range(2, 4), EvenPages)]


def test_copies_are_made_in_parts_of_bounded_size() -> None:
    scattered = [[2 * number, 2 * number + 30] for number in range(10)]
    parts = list(lay_out(scattered, 4, 8, 4, token_bytes=COPY_BYTES // (3 * 8)))
    assert [run for run, _ in parts] == [range(0, 3), range(3, 6), range(6, 9), range(9, 10)]
    assert all(isinstance(layout, ScatteredPages) for _, layout in parts)


def test_transient_blocks_over_one_sequence_share_its_view() -> None:
    kv = torch.randn(1, 2, 5, 2, HEADS, HEAD_DIM)
    ((_, layout),) = lay_out([[1, 2], [1, 2], [1, 2]], 2, 3, 0, token_bytes=1)
    assert layout == EvenPages(1, 0, 3, 3)
    keys, _ = layout.open(kv, 0).read(0)
    assert torch.equal(keys, kv[0, 0, 1:3].flatten(0, 1)[:3].expand(3, -1, -1, -1))
