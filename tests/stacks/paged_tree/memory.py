"""What sequences live in: numbers that are free, pools of recurrent states by slot, and the sequence itself."""

import numpy as np
from formats import F


class Free:
    """Numbers that are free, without a list of those that nobody has had yet."""

    def __init__(self, count, base, policy):
        self.count, self.base, self.policy, self.fresh, self.back = count, base, policy, 0, []

    def __len__(self):
        return self.count - self.fresh + len(self.back)

    def take(self):
        if self.policy == "fifo" and self.fresh < self.count or not self.back:
            self.fresh += 1
            return (self.base + self.fresh - 1) % self.count
        if self.policy == "fifo":
            return self.back.pop(0)
        if self.policy in ("lowest", "highest"):
            self.back.sort(reverse=self.policy == "lowest")
        return self.back.pop()

    def give(self, number):
        self.back.append(number)


class Pool:
    """The recurrent state of one layer, by slot: convolution window, then scan state, one slot every `stride` words."""

    def __init__(self, model, stride, bug, number):
        self.window, self.cells = (model.width - 1, model.inner), (model.inner, model.states)
        self.split = self.window[0] * self.window[1]
        self.size = self.split + self.cells[0] * self.cells[1]
        self.stride, self.bug, self.number, self.slots = max(stride, self.size), bug, number, {}

    def slot(self, k):
        if k not in self.slots:
            self.slots[k] = np.zeros(self.size, F)
        return self.slots[k]

    def read(self, k, decode=False):
        if self.bug == "slot-id-narrow-both":
            k %= self.number
        if self.bug == "decode-reads-narrow-slot" and decode:
            k %= self.number
        flat = self.slot(k)
        return flat[: self.split].reshape(self.window), flat[self.split :].reshape(self.cells)

    def write(self, k, window, cells, decode=False):
        if self.bug == "slot-id-narrow-both":
            k %= self.number
        to_window, to_cells = k * self.stride, k * self.stride + self.split
        if not decode:
            narrow = {"scan-offset-u32": 2**32, "scan-bytes-u32": 2**30}.get(self.bug)
            if narrow:
                to_cells = k * self.stride % narrow + self.split
            if (
                self.bug == "scan-offset-i32"
                and to_cells >= 2**31
                or self.bug == "scan-bytes-i32"
                and 4 * k * self.stride >= 2**31
            ):
                to_cells = None  # a negative address: nothing of this pool
            if self.bug == "window-bytes-u32":
                to_window = k * self.stride * 4 % 2**32 // 4
            if self.bug == "slot-id-narrow":
                to_window, to_cells = k % self.number * self.stride, k % self.number * self.stride + self.split
        self.put(to_window, window.ravel())
        if to_cells is not None:
            self.put(to_cells, cells.ravel())

    def put(self, word, values):
        """Words of the pool, wherever they lie: a write that lands elsewhere hits whoever is there."""
        while len(values):
            k, offset = divmod(word, self.stride)
            room = self.stride - offset
            inside = min(len(values), room, max(self.size - offset, 0))
            if inside:
                self.slot(k)[offset : offset + inside] = values[:inside]
            word, values = word + min(room, len(values)), values[room:]


class Sequence:
    def __init__(self, request, prompt, most):
        self.request, self.prompt, self.most = request, prompt, most
        self.ids, self.lp, self.done, self.slot, self.pages, self.hit = [], [], 0, None, [], 0
        self.preempted, self.drawn, self.swapped, self.keys, self.fresh, self.row = 0, 0, None, [], True, None
        self.resumed = False

    @property
    def context(self):
        return self.prompt + self.ids
