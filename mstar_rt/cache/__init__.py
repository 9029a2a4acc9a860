"""Paged memory: page allocator, page tables and the sequences of a request. The tensors are in cache.pool."""

from __future__ import annotations

from mstar_rt.cache.allocator import PageAllocator
from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.reservation import Reservation, reserve

__all__ = ["PageAllocator", "PageTable", "Reservation", "reserve"]
