"""One call of the C ABI on tensors: checks of arguments, the back end of a device, workspace, stream and faults.

Everything here runs on real tensors, inside the custom ops of ops.py; compilers see only those ops."""

import os
import threading

import torch

from . import _abi
from ._abi import LockstepError

DTYPES = {torch.float32: _abi.F32, torch.bfloat16: _abi.BF16, torch.float16: _abi.F16}


def _aligned(n, unit):
    """The first multiple of unit from n on."""
    return -(-n // unit) * unit


def require(name, tensor, dtypes, shape=None, like=None):
    """TypeError or ValueError naming the argument unless it has one of dtypes, the shape and like's device."""
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name}: {tensor.dtype} of shape {tuple(tensor.shape)}; {wanted} is taken")
    if shape is not None and tensor.shape != tuple(shape):
        raise ValueError(f"{name}: shape {tuple(tensor.shape)}; {tuple(shape)} is wanted")
    if like is not None and tensor.device != like.device:
        raise ValueError(f"{name}: on {tensor.device}, while the first argument is on {like.device}")


def row_stride(tensor):
    """Elements from one row [..., :] to the next where the rows lie evenly and apart, each contiguous; else None."""
    width, stride, expected = tensor.shape[-1], None, None
    if tensor.is_contiguous() or tensor.numel() == 0:
        return width
    if width > 1 and tensor.stride(-1) != 1:
        return None
    for size, step in zip(reversed(tensor.shape[:-1]), reversed(tensor.stride()[:-1])):
        if size == 1:
            continue
        if expected is not None and step != expected:
            return None
        stride = step if stride is None else stride
        expected = step * size
    if stride is None:
        return width
    return stride if stride >= width else None


def rows(name, tensor, dtypes, shape=None, like=None):
    """Checks [*, width] whose rows are read in place and returns their stride."""
    require(name, tensor, dtypes, shape, like)
    if tensor.dim() == 0:
        raise ValueError(f"{name}: a scalar; [*, width] is wanted")
    stride = row_stride(tensor)
    if stride is None:
        raise ValueError(f"{name}: shape {tuple(tensor.shape)} with strides {tensor.stride()}; rows must be "
                         "contiguous, apart and evenly spaced (nothing is copied here: call .contiguous() where one is "
                         "meant)")
    return stride


def pool(name, tensor, dtypes, entry, like):
    """Checks a state pool [slots, *entry] and returns its view. Entries are contiguous, 16-byte aligned and apart."""
    require(name, tensor, dtypes, (tensor.shape[0] if tensor.dim() else 0,) + tuple(entry), like)
    size = entry[0] * entry[1] * tensor.element_size()
    # The stride of a single entry means nothing.
    step = tensor.stride(0) * tensor.element_size() if tensor.shape[0] > 1 else _aligned(size, 16)
    if size and (not tensor[:1].is_contiguous() or step < size or step % 16 or tensor.data_ptr() % 16):
        raise ValueError(f"{name}: shape {tuple(tensor.shape)} with strides {tensor.stride()} at "
                         f"{tensor.data_ptr():#x}; entries must be contiguous, apart and 16-byte aligned")
    return _abi.PoolView(tensor.data_ptr(), step, tensor.shape[0])


def new_pool(n, entry, dtype, device, zero=True):
    """A pool [n, *entry] whose entries pool() takes, zeroed unless all of it will be written."""
    size = entry[0] * entry[1]
    step = _aligned(size * dtype.itemsize, 16) // dtype.itemsize
    made = (torch.zeros if zero else torch.empty)((n, step), dtype=dtype, device=device)
    return (made if step == size else made[:, :size]).view(n, *entry)


class _Workers:
    """The CPU back end's threads: made at the first call, again in a forked child; takes one call at a time."""

    def __init__(self):
        self.lock, self.workers = threading.Lock(), None

    def run(self, op, args, exec_):
        with self.lock:
            if self.workers is None:
                self.workers = _abi.workers_create(torch.get_num_threads())
            exec_.workers = self.workers
            _abi.call(op, exec_, args)


_workers = _Workers()
os.register_at_fork(after_in_child=_workers.__init__)


class _Faults:
    """A CUDA device's fault records, one for each stream that calls with check="stream". All are made at once, at the
    first call on the device: a stream that is being captured can take one, but not make one."""

    STREAMS = 256

    def __init__(self, device):
        self.device, self.row_of, self.lock = device, {}, threading.Lock()
        self.records = torch.zeros((self.STREAMS, 4), dtype=torch.int64, device=device)
        torch.cuda.synchronize(device)

    def pointer(self, stream):
        with self.lock:
            if stream not in self.row_of:
                if len(self.row_of) == self.STREAMS:
                    raise LockstepError(f'{self.device}: check="stream" on more than {self.STREAMS} streams',
                                        "capacity")
                self.row_of[stream] = len(self.row_of)
            return self.records[self.row_of[stream]].data_ptr()

    def take(self):
        """Raises for the first fault there is."""
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            stream = torch.cuda.current_stream().cuda_stream
            for used in list(self.row_of):
                _abi.fault_take(_abi.Exec(backend=_abi.CUDA, stream=stream, fault=self.pointer(used)))


_faults = {}  # CUDA device index -> _Faults


def _faults_of(op, device):
    if device.index not in _faults:
        if torch.cuda.is_current_stream_capturing():
            raise LockstepError(f"{op}: {device} has no fault records yet, and a captured stream cannot make them: "
                                "call lockstep.check(device) or any op once before the capture")
        _faults[device.index] = _Faults(device)
    return _faults[device.index]


def _cuda_exec(op, device, check, exec_):
    """Fills in the current stream and, for check="stream", its fault record."""
    faults = _faults_of(op, device)
    exec_.backend, exec_.stream = _abi.CUDA, torch.cuda.current_stream().cuda_stream
    if check == "stream":
        exec_.fault = faults.pointer(exec_.stream)
    elif torch.cuda.is_current_stream_capturing():
        raise LockstepError(f'{op}: check="wait" waits for the device, which a captured stream cannot: pass '
                            'check="stream", and call lockstep.check() after the graph has run')


def run(op, device, check, **members):
    """Calls ls_op_<op> on the device. Members are those of its struct; tensors become pointers, dtypes their codes."""
    if check not in ("wait", "stream"):
        raise ValueError(f"check: {check!r}; 'wait' or 'stream' is taken")
    args = _abi.OPS[op](**{name: value.data_ptr() if isinstance(value, torch.Tensor) else
                           DTYPES[value] if isinstance(value, torch.dtype) else value
                           for name, value in members.items()})
    n = _abi.workspace_bytes(op, args)
    workspace = torch.empty(n + 255, dtype=torch.uint8, device=device)  # begins at the first multiple of 256
    exec_ = _abi.Exec(workspace=_aligned(workspace.data_ptr(), 256), workspace_bytes=n)
    if device.type == "cpu":
        exec_.backend = _abi.CPU
        _workers.run(op, args, exec_)
    elif device.type == "cuda":
        with torch.cuda.device(device):
            _cuda_exec(op, device, check, exec_)
            _abi.call(op, exec_, args)
    else:
        raise ValueError(f"{op}: tensors on {device}; cpu and cuda are taken")


def check(device=None):
    """Waits for a CUDA device (None: every one that this process has called ops on) and raises LockstepError for the
    first fault that a call with check="stream" has found since the last look.

    Such a call, and every later one on its stream until this raises, has written nothing: its results mean nothing.
    Makes the device's fault records where there are none, which a graph capture needs beforehand. On the CPU every call
    raises its own faults, and there is nothing to do."""
    if device is None:
        for faults in list(_faults.values()):
            faults.take()
    elif torch.device(device).type == "cuda":
        index = torch.device(device).index
        index = torch.cuda.current_device() if index is None else index
        _faults_of("check", torch.device("cuda", index)).take()
