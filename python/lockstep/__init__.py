"""Lockstep's ops for torch: the same bits on CPU and CUDA, in any batch, packing and chunking."""

from ._abi import LockstepError
from ._run import check
from .ops import (LOG2E, causal_conv1d, conv1d, logprob, scan, selected_logprob, selective_scan, selective_scan_fn,
                  sequence_sum, spans)

__all__ = ["LOG2E", "LockstepError", "causal_conv1d", "check", "conv1d", "logprob", "scan", "selected_logprob",
           "selective_scan", "selective_scan_fn", "sequence_sum", "spans"]
