"""What the peers' programs share: the time of a call on this GPU."""

import torch


def time_of(call, repeats=7):
    """Median microseconds of a call, behind three that are not counted."""
    times = []
    for i in range(-3, repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        if i >= 0:
            times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)[repeats // 2]
