"""Stands in for FlashInfer where there is no GPU: computes, slowly and on the CPU, what its documentation says.

Only the arguments that our backend passes exist, so an argument that FlashInfer 0.7 does not have cannot creep in.
Index arrays are read literally; anything out of range fails here as it would corrupt memory there.
"""

from __future__ import annotations

import math

import torch

from mstar_rt.nn.attention import StepKind
from tests.nn.dense_reference import visibility

Pages = tuple[torch.Tensor, torch.Tensor]


def attend_with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [N, Hq, D], k and v [L, Hkv, D] -> output like q, base-2 log-sum-exp of the scores [N, Hq] in float32."""
    groups = q.shape[1] // k.shape[1]
    keys, values = (x.double().repeat_interleave(groups, 1) for x in (k, v))
    kind = StepKind.CAUSAL_APPEND if causal else StepKind.BLOCK_APPEND
    hidden = ~visibility(len(k) - len(q), len(q), kind) if causal else torch.zeros(len(q), len(k), dtype=torch.bool)
    scores = torch.einsum("nhd,lhd->nhl", q.double(), keys) / math.sqrt(q.shape[2])
    scores = scores.masked_fill(hidden[:, None], -math.inf)
    out = torch.einsum("nhl,lhd->nhd", scores.softmax(-1), values)
    return out.to(q.dtype), (scores.logsumexp(-1) / math.log(2)).float()


class Kernel:
    """What the two wrappers share: sequences planned once, run per layer."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype is torch.uint8
        assert kv_layout == "NHD"

    def _expect(self, num_qo_heads: int, num_kv_heads: int, head_dim: int, dtypes: tuple[torch.dtype, ...]) -> None:
        self.q_shape, self.kv_shape, self.dtypes = (num_qo_heads, head_dim), (num_kv_heads, head_dim), dtypes

    def _check(self, q: torch.Tensor, k: torch.Tensor) -> None:
        assert q.shape == (int(self.qo_indptr[-1]), *self.q_shape)
        assert k.shape[-2:] == self.kv_shape
        assert (q.dtype, k.dtype) == self.dtypes

    def _over_sequences(
        self, q: torch.Tensor, sequences: list[Pages], causal: bool, return_lse: bool
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        queries = q.split(self.qo_indptr.diff().tolist())
        results = [attend_with_lse(part, k, v, causal) for part, (k, v) in zip(queries, sequences, strict=True)]
        out, lse = (torch.cat(column) for column in zip(*results, strict=True))
        return (out, lse) if return_lse else out


class BatchPrefillWithPagedKVCacheWrapper(Kernel):
    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        causal: bool = False,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        arrays = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(array.dtype is torch.int32 for array in arrays)
        self.qo_indptr, self.kv_indptr, self.kv_indices, self.last_page_len = arrays
        self.page_size, self.causal = page_size, causal
        self._expect(num_qo_heads, num_kv_heads, head_dim_qk, (q_data_type, kv_data_type or q_data_type))

    def run(
        self, q: torch.Tensor, paged_kv_cache: Pages, return_lse: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        self._check(q, paged_kv_cache[0])
        sequences = []
        for ids, last in zip(self.kv_indices.split(self.kv_indptr.diff().tolist()), self.last_page_len, strict=True):
            length = (len(ids) - 1) * self.page_size + int(last)
            assert length > 0, "what the kernels do with a sequence that has no keys is not documented"
            k, v = (pages[ids.long()].flatten(0, 1)[:length] for pages in paged_kv_cache)
            sequences.append((k, v))
        return self._over_sequences(q, sequences, self.causal, return_lse)


class BatchPrefillWithRaggedKVCacheWrapper(Kernel):
    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        causal: bool = False,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        self.qo_indptr, self.kv_indptr, self.causal = qo_indptr, kv_indptr, causal
        self._expect(num_qo_heads, num_kv_heads, head_dim_qk, (q_data_type, kv_data_type or q_data_type))

    def run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, return_lse: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        self._check(q, k)
        sizes = self.kv_indptr.diff().tolist()
        return self._over_sequences(q, list(zip(k.split(sizes), v.split(sizes), strict=True)), self.causal, return_lse)


def append_paged_kv_cache(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_kv_cache: Pages,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    kv_layout: str = "NHD",
) -> None:
    assert kv_layout == "NHD"
    assert len(kv_last_page_len) == len(kv_indptr) - 1
    page_size = paged_kv_cache[0].shape[1]
    for number, (sequence, position) in enumerate(zip(batch_indices.tolist(), positions.tolist(), strict=True)):
        entry = int(kv_indptr[sequence]) + position // page_size
        assert entry < int(kv_indptr[sequence + 1])
        page = int(kv_indices[entry])
        paged_kv_cache[0][page, position % page_size] = append_key[number]
        paged_kv_cache[1][page, position % page_size] = append_value[number]


def merge_state(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    assert v_a.shape == v_b.shape
    assert s_a.shape == s_b.shape == v_a.shape[:2]
    both = torch.stack([s_a, s_b]).double()
    weights = torch.softmax(both * math.log(2), 0)[..., None]
    out = weights[0] * v_a.double() + weights[1] * v_b.double()
    return out.to(v_a.dtype), torch.logaddexp2(s_a, s_b)
