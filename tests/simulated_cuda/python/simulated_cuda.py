"""`torch.cuda` on the simulated device: what a CPU build of torch lacks, in Python.

Streams run in order, events have the host's time, and a graph repeats the operators that it has
seen with the same memory. Attention has the operators that a GPU has, computed plainly.
"""

import contextlib
import ctypes
import functools
import itertools
import math
import os
import time
from collections import Counter
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("cuda", 0)
MEMORY = 16 * 2**30
CAPABILITY = tuple(map(int, os.environ.get("SIMULATED_CAPABILITY", "9.0").split(".")))


class Stream:
    """A stream, which has nothing left to do."""

    priority = 0

    def __init__(self, device=None, priority=0, **_):
        del device, priority
        self.device, self.device_index, self.stream_id, self.device_type = DEVICE, 0, id(self), 1
        self.cuda_stream = id(self)

    def wait_stream(self, stream):
        """Do nothing."""

    def wait_event(self, event):
        """Do nothing."""

    def synchronize(self):
        """Do nothing."""

    def query(self):
        """Return that all is done."""
        return True

    def record_event(self, event=None):
        """Return an event of now."""
        event = event or Event()
        event.record(self)
        return event


class Event:
    """A moment of the host."""

    def __init__(self, enable_timing=False, **_):
        del enable_timing
        self._time = None

    def record(self, stream=None):
        """Take the time."""
        del stream
        self._time = time.perf_counter()

    def query(self):
        """Return that it is over."""
        return True

    def synchronize(self):
        """Do nothing."""

    wait = synchronize

    def elapsed_time(self, other):
        """Return milliseconds until another event."""
        return 1000 * (other._time - self._time)


def refuse(capture):
    """Refuse an operator, which also makes its capture invalid."""
    capture.is_refused = True
    raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


class _Capture(TorchDispatchMode):
    """Records operators. They run, but what they change is restored: a GPU runs none."""

    def __init__(self):
        super().__init__()
        self.calls, self._changed, self.is_refused = [], {}, False
        self._state = _generator().get_state()

    def _keep(self, func, args, kwargs):
        values = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        for argument in func._schema.arguments:
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in tree_leaves(values.get(argument.name)):
                if isinstance(tensor, torch.Tensor) and tensor.numel():
                    place = tensor.untyped_storage().data_ptr()
                    if place not in self._changed:
                        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                        whole.set_(tensor.untyped_storage())
                        self._changed[place] = whole, whole.clone()

    def undo(self):
        """Restore memory and the generator."""
        for whole, before in self._changed.values():
            whole.copy_(before)
        _generator().set_state(self._state)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if (
            torch.Tag.data_dependent_output in func.tags
            or func.name() == "aten::_local_scalar_dense"
        ):
            refuse(self)
        if func.name().startswith("aten::_to_copy") or func.name().startswith("aten::copy_"):
            tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            if any(t.device.type == "cpu" and t.dim() > 0 for t in tensors):
                refuse(self)
        self._keep(func, args, kwargs)
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, result))
        return result


class Pools:
    """Which pools the allocator reserves for captures, as CUDACachingAllocator.cpp counts them."""

    handles = itertools.count(1)
    uses, underway = Counter(), []

    @classmethod
    def begin(cls, pool):
        """Reserve a pool for a capture."""
        assert pool not in cls.uses or cls.uses[pool] > 0, "INTERNAL ASSERT FAILED: use_count"
        cls.uses[pool] += 1
        if pool in cls.underway:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        cls.underway.append(pool)

    @classmethod
    def end(cls, device, pool):
        """Allocate in it no more."""
        if pool not in cls.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        cls.underway.remove(pool)

    @classmethod
    def release(cls, device, pool):
        """Let one capture less use it."""
        cls.uses[pool] -= 1
        assert cls.uses[pool] >= 0, "INTERNAL ASSERT FAILED: use_count"

    @classmethod
    def snapshot(cls):
        """Return a segment for each pool that is not free."""
        return [{"segment_pool_id": pool} for pool, uses in cls.uses.items() if uses > 0]


class CUDAGraph:
    """Repeats the operators that were called during its capture, with the same tensors."""

    capturing = None

    def __init__(self, keep_graph=False):
        del keep_graph
        self._calls, self._ended = [], False

    def capture_begin(self, pool=None, capture_error_mode="global"):
        """Begin to record."""
        del capture_error_mode
        self._pool = pool or (next(Pools.handles), 0)
        Pools.begin(self._pool)
        self._mode = _Capture()
        self._mode.__enter__()
        CUDAGraph.capturing = self

    def capture_end(self):
        """Stop; a capture in which an operator was refused raises, and keeps its pool."""
        CUDAGraph.capturing = None
        self._mode.__exit__(None, None, None)
        self._mode.undo()
        if self._mode.is_refused:
            raise RuntimeError("CUDA error: operation failed due to a previous error")
        Pools.end(0, self._pool)
        self._calls, self._ended = self._mode.calls, True

    def pool(self):
        """Return the pool."""
        if not self._ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def reset(self):
        """Forget the operators."""
        self._calls = []
        if self._ended:
            Pools.release(0, self._pool)
            self._ended = False

    __del__ = reset

    def replay(self):
        """Call each operator again and write its results where the first ones are."""
        with torch.no_grad(), _disable_current_modes():
            for func, args, kwargs, result in self._calls:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class graph:  # torch's name
    """Context of a capture."""

    def __init__(self, cuda_graph, pool=None, stream=None, capture_error_mode="global", **_):
        self._graph, self._pool, self._mode = cuda_graph, pool, capture_error_mode
        self._stream = stream or Stream()

    def __enter__(self):
        self._before = _state.stream
        _state.stream = self._stream
        self._graph.capture_begin(self._pool, self._mode)

    def __exit__(self, *exc):
        self._graph.capture_end()
        _state.stream = self._before


_state = SimpleNamespace(stream=Stream(), default=None)
_state.default = _state.stream


def _set_stream(stream):
    _state.stream = stream


@contextlib.contextmanager
def _stream(stream):
    before = _state.stream
    _state.stream = stream or before
    try:
        yield
    finally:
        _state.stream = before


def _properties(device=None):
    del device
    return SimpleNamespace(
        name="simulated GPU", total_memory=MEMORY, major=CAPABILITY[0], minor=CAPABILITY[1],
        multi_processor_count=100, warp_size=32, uuid="simulated", is_integrated=0,
        gcnArchName="", max_threads_per_multi_processor=2048, L2_cache_size=2**25,
        regs_per_multiprocessor=65536, shared_memory_per_block_optin=2**17,
        shared_memory_per_block=49152, shared_memory_per_multiprocessor=2**17,
    )  # fmt: skip


def _memory_stats(device=None):
    del device
    now, peak = _library().simulated_memory_now(), _library().simulated_memory_peak()
    return {
        "allocated_bytes.all.current": now, "allocated_bytes.all.peak": peak,
        "reserved_bytes.all.current": now, "reserved_bytes.all.peak": peak,
        "requested_bytes.all.peak": peak, "num_alloc_retries": 0, "num_ooms": 0,
        "active_bytes.all.current": now, "inactive_split_bytes.all.current": 0,
    }  # fmt: skip


@functools.cache
def _library():
    """Return the preloaded library of the device."""
    library = ctypes.CDLL(None)
    for name in ("now", "peak"):
        getattr(library, f"simulated_memory_{name}").restype = ctypes.c_size_t
    library.simulated_memory_limit.argtypes = [ctypes.c_size_t]
    return library


def _limit_memory(fraction, device=None):
    del device
    _library().simulated_memory_limit(int(fraction * MEMORY) if fraction < 1 else 2**63)


def _synchronize(device=None):
    del device
    if CUDAGraph.capturing is not None:
        refuse(CUDAGraph.capturing._mode)


def _generator():
    return torch.cuda.default_generators[0]


def _nothing():
    """Return a function that does nothing; torch.compile wants each function once."""
    return lambda *_, **__: None


def install():
    """Give `torch.cuda` the simulated device."""
    cuda = torch.cuda
    functions = {
        "_is_compiled": lambda: True,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: CAPABILITY >= (8, 0),
        "is_tf32_supported": lambda: CAPABILITY >= (8, 0),
        "init": _nothing(), "_lazy_init": _nothing(), "_lazy_call": lambda call, **_: call(),
        "device_count": lambda: 1, "_device_count_nvml": lambda: 1,
        "current_device": lambda: 0, "set_device": _nothing(),
        "get_device_name": lambda device=None: "simulated GPU",
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_properties": _properties,
        "get_arch_list": lambda: [f"sm_{CAPABILITY[0]}{CAPABILITY[1]}"],
        "synchronize": _synchronize, "empty_cache": _nothing(), "ipc_collect": _nothing(),
        "current_stream": lambda device=None: _state.stream,
        "default_stream": lambda device=None: _state.default,
        "set_stream": _set_stream, "stream": _stream,
        "Stream": Stream, "Event": Event, "CUDAGraph": CUDAGraph, "graph": graph,
        "is_current_stream_capturing": lambda: CUDAGraph.capturing is not None,
        "graph_pool_handle": lambda: (0, next(Pools.handles)),
        "memory_stats": _memory_stats, "memory_snapshot": Pools.snapshot,
        "memory_allocated": lambda d=None: _memory_stats()["allocated_bytes.all.current"],
        "max_memory_allocated": lambda d=None: _memory_stats()["allocated_bytes.all.peak"],
        "memory_reserved": lambda d=None: _memory_stats()["reserved_bytes.all.current"],
        "max_memory_reserved": lambda d=None: _memory_stats()["reserved_bytes.all.peak"],
        "mem_get_info": lambda d=None: (MEMORY // 2, MEMORY),
        "reset_peak_memory_stats": lambda d=None: _library().simulated_memory_reset_peak(),
        "reset_max_memory_allocated": _nothing(),
        "set_per_process_memory_fraction": _limit_memory,
        "get_rng_state": lambda device=None: _generator().get_state(),
        "set_rng_state": lambda state, device=None: _generator().set_state(state),
        "get_rng_state_all": lambda: [_generator().get_state()],
        "set_rng_state_all": lambda states: _generator().set_state(states[0]),
        "manual_seed": lambda seed: _generator().manual_seed(seed),
        "manual_seed_all": lambda seed: _generator().manual_seed(seed),
        "initial_seed": lambda: _generator().initial_seed(),
        "_exchange_device": lambda device: 0, "_maybe_exchange_device": lambda device: 0,
    }  # fmt: skip
    for name, function in functions.items():
        setattr(cuda, name, function)
    for module in (torch.cuda.memory, torch.cuda.random, torch.cuda.graphs, torch.cuda.streams):
        for name, function in functions.items():
            if hasattr(module, name):
                setattr(module, name, function)
    cuda.default_generators = (torch.Generator(DEVICE),)
    torch._C._cuda_getDeviceCount = lambda: 1
    torch._C._cuda_getDevice = lambda: 0
    torch._C._cuda_setDevice = _nothing()
    torch._C._cuda_exchangeDevice = lambda device: 0
    torch._C._cuda_maybeExchangeDevice = lambda device: 0
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    torch._C._cuda_endAllocateToPool = Pools.end
    torch._C._cuda_releasePool = Pools.release
    torch._C._cuda_isInBadFork = lambda: False
    torch._C._cuda_isCurrentStreamCapturing = lambda: CUDAGraph.capturing is not None
    torch.backends.cuda.is_built = lambda: True
    _attention()


class Attention:
    """Attention of one batch of heads on the host, in float32, with its backward pass.

    Args:
        query: (..., Lq, d) on any device; key and value (..., Lk, d) and (..., Lk, e).
        bias: Added to the scores; None adds nothing.
        causal: Whether a query sees keys up to its own position.
        window: Largest distances to the left and right; None and negative numbers are no limit.
        dropout: Probability that a weight is dropped.
        seed: Seed of the mask.
    """

    def __init__(self, query, key, value, bias, causal, window, dropout, seed, scale):
        self.query, self.key, self.value = (t.cpu().float() for t in (query, key, value))
        repeats = self.query.shape[-3] // self.key.shape[-3]
        self.repeats = repeats
        if repeats > 1:
            self.key = self.key.repeat_interleave(repeats, -3)
            self.value = self.value.repeat_interleave(repeats, -3)
        self.scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = self.query @ self.key.mT * self.scale
        if bias is not None:
            scores = scores + bias.cpu().float()
        rows, columns = scores.shape[-2:]
        distance = torch.arange(columns)[None] - torch.arange(rows)[:, None]
        left, right = window or (None, None)
        hidden = torch.zeros(rows, columns, dtype=torch.bool)
        if causal:
            hidden |= distance > 0
        if left is not None and left >= 0:
            hidden |= distance < -left
        if right is not None and right >= 0:
            hidden |= distance > right
        scores = scores.masked_fill(hidden, -math.inf)
        self.scores, self.dtype = scores, query.dtype
        self.logsumexp = scores.logsumexp(-1)
        self.weights = scores.softmax(-1).nan_to_num(0.0)
        self.mask = None
        if dropout > 0:
            generator = torch.Generator().manual_seed(seed)
            kept = torch.rand(scores.shape, generator=generator) >= dropout
            self.mask = kept / (1 - dropout)

    def dropped(self, weights):
        """Return weights or their gradient under the mask."""
        return weights if self.mask is None else weights * self.mask

    def output(self):
        """Return (..., Lq, e), float32; the weights are rounded as the kernels do."""
        peaks = self.scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        weights = (self.scores - peaks).exp()
        rounded = self.dropped(weights).to(self.dtype).float()
        return rounded @ self.value / weights.sum(-1, keepdim=True).clamp(min=1e-30)

    def gradients(self, gradient):
        """Return the gradients of query, key, value and bias."""
        gradient = gradient.cpu().float()
        of_value = self.dropped(self.weights).mT @ gradient
        of_weights = self.dropped(gradient @ self.value.mT)
        inner = (of_weights * self.weights).sum(-1, keepdim=True)
        of_scores = self.weights * (of_weights - inner)
        of_query = of_scores @ self.key * self.scale
        of_key = of_scores.mT @ self.query * self.scale
        if self.repeats > 1:
            of_key, of_value = (
                t.unflatten(-3, (-1, self.repeats)).sum(-3) for t in (of_key, of_value)
            )
        return of_query, of_key, of_value, of_scores


def _seed(dropout):
    """Return the two numbers of a philox generator, on the device."""
    drawn = torch.randint(2**31, (1,), generator=_generator(), device=DEVICE) if dropout else None
    seed = torch.zeros((), dtype=torch.int64, device=DEVICE) if drawn is None else drawn[0]
    return seed, torch.zeros((), dtype=torch.int64, device=DEVICE)


def _like(computed, given):
    return computed.to(given.dtype).to(DEVICE)


def _sdp_flash(query, key, value, dropout=0.0, causal=False, debug=False, *, scale=None):
    del debug
    assert query.dtype in (torch.float16, torch.bfloat16), "flash attention has 16 bits only"
    seed, offset = _seed(dropout)
    head = Attention(query, key, value, None, causal, None, dropout, int(seed), scale)
    empty = torch.empty(0, device=DEVICE)
    state = torch.stack((seed, offset))
    output = _like(head.output(), query).transpose(1, 2).contiguous().transpose(1, 2)
    lengths = query.shape[2], key.shape[2]
    return (output, head.logsumexp.to(DEVICE), empty, empty, *lengths, state, offset, empty)


def _sdp_flash_backward(
    gradient, query, key, value, out, logsumexp, cum_q, cum_k, max_q, max_k, dropout, causal,
    state, offset, *, scale=None,
):  # fmt: skip
    del out, logsumexp, cum_q, cum_k, max_q, max_k, offset
    seed = int(state.flatten()[0])
    head = Attention(query, key, value, None, causal, None, dropout, seed, scale)
    return tuple(map(_like, head.gradients(gradient)[:3], (query, key, value)))


def _sdp_efficient(
    query, key, value, bias, compute_logsumexp, dropout=0.0, causal=False, *, scale=None
):
    del compute_logsumexp
    seed, offset = _seed(dropout)
    head = Attention(query, key, value, bias, causal, None, dropout, int(seed), scale)
    output = _like(head.output(), query).transpose(1, 2).contiguous().transpose(1, 2)
    return output, head.logsumexp.to(DEVICE), seed, offset


def _sdp_efficient_backward(
    gradient, query, key, value, bias, out, logsumexp, seed, offset, dropout, wanted,
    causal=False, *, scale=None,
):  # fmt: skip
    del out, logsumexp, offset
    head = Attention(query, key, value, bias, causal, None, dropout, int(seed), scale)
    *first, of_bias = head.gradients(gradient)
    needs_bias = bias is not None and wanted[3]
    of_bias = _like(of_bias.sum_to_size(bias.shape), bias) if needs_bias else None
    return (*map(_like, first, (query, key, value)), of_bias)


def _sequences(offsets, *tensors):
    """Yield the parts of packed tensors (N, heads, d) as (heads, L, d)."""
    bounds = offsets.tolist()
    for begin, end in itertools.pairwise(bounds):
        if end > begin:  # rows of a graph can be empty
            yield tuple(tensor[begin:end].transpose(0, 1) for tensor in tensors)


def _packed(query, key, value, offsets, causal, window, dropout, seed, scale):
    """Yield an `Attention` per sequence."""
    for number, parts in enumerate(_sequences(offsets, query, key, value)):
        yield Attention(*parts, None, causal, window, dropout, seed + number, scale)


def _packed_output(heads, query, value):
    parts = [head.output().transpose(0, 1) for head in heads]
    joined = torch.cat(parts) if parts else query.new_zeros(0).cpu()
    output = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype, device=DEVICE)
    output[: len(joined)] = _like(joined, query)
    return output


def _packed_gradients(heads, gradient, offsets, tensors):
    results = [torch.zeros_like(tensor) for tensor in tensors]
    bounds = offsets.tolist()
    places = [(begin, end) for begin, end in itertools.pairwise(bounds) if end > begin]
    for head, (begin, end) in zip(heads, places, strict=True):
        found = head.gradients(gradient[begin:end].transpose(0, 1))[:3]
        for result, part in zip(results, found, strict=True):
            result[begin:end] = _like(part.transpose(0, 1), result)
    return tuple(results)


def _flash(
    query, key, value, cum_q, cum_k, max_q, max_k, dropout, causal, debug, *, scale=None,
    window_size_left=None, window_size_right=None, **_,
):  # fmt: skip
    del cum_k, max_k, debug
    assert query.dtype in (torch.float16, torch.bfloat16), "flash attention has 16 bits only"
    seed, offset = _seed(dropout)
    window = window_size_left, window_size_right
    heads = _packed(query, key, value, cum_q, causal, window, dropout, int(seed), scale)
    output = _packed_output(heads, query, value)
    logsumexp = torch.zeros(query.shape[1], int(max_q), device=DEVICE)
    return output, logsumexp, torch.stack((seed, offset)), offset, torch.empty(0, device=DEVICE)


def _flash_backward(
    gradient, query, key, value, out, logsumexp, cum_q, cum_k, max_q, max_k, dropout, causal,
    state, unused, *, scale=None, window_size_left=None, window_size_right=None, **_,
):  # fmt: skip
    del out, logsumexp, cum_k, max_q, max_k, unused
    window, seed = (window_size_left, window_size_right), int(state.flatten()[0])
    heads = _packed(query, key, value, cum_q, causal, window, dropout, seed, scale)
    return _packed_gradients(heads, gradient, cum_q, (query, key, value))


def _efficient(
    query, key, value, bias, cum_q, cum_k, max_q, max_k, dropout, mask_type, compute_logsumexp,
    *, scale=None, seqlen_k=None, window_size=None,
):  # fmt: skip
    del cum_k, compute_logsumexp, seqlen_k
    assert bias is None
    assert query.shape[0] == 1
    seed, offset = _seed(dropout)
    window = None if window_size is None else (window_size - 1, None)
    rows = query[0], key[0], value[0]
    heads = _packed(*rows, cum_q, mask_type == 1, window, dropout, int(seed), scale)
    output = _packed_output(heads, query[0], value[0])[None]
    logsumexp = torch.zeros(1, query.shape[2], int(max_q), device=DEVICE)
    return output, logsumexp, seed, offset, int(max_q), int(max_k)


def _efficient_backward(
    gradient, query, key, value, bias, out, cum_q, cum_k, max_q, max_k, logsumexp, dropout, seed,
    offset, mask_type, bias_requires_grad, *, scale=None, num_splits_key=None, window_size=None,
    shared_storage_dqdkdv=False,
):  # fmt: skip
    del out, cum_k, max_q, max_k, logsumexp, offset, num_splits_key, shared_storage_dqdkdv
    assert bias is None
    assert not bias_requires_grad
    window = None if window_size is None else (window_size - 1, None)
    rows = query[0], key[0], value[0]
    heads = _packed(*rows, cum_q, mask_type == 1, window, dropout, int(seed), scale)
    found = _packed_gradients(heads, gradient[0], cum_q, rows)
    return (*(each[None] for each in found), None)


def _attention():
    library = torch.library.Library("aten", "IMPL")
    kernels = {
        "_scaled_dot_product_flash_attention": _sdp_flash,
        "_scaled_dot_product_flash_attention_backward": _sdp_flash_backward,
        "_scaled_dot_product_efficient_attention": _sdp_efficient,
        "_scaled_dot_product_efficient_attention_backward": _sdp_efficient_backward,
        "_flash_attention_forward": _flash,
        "_flash_attention_backward": _flash_backward,
        "_efficient_attention_forward": _efficient,
        "_efficient_attention_backward": _efficient_backward,
    }
    for name, kernel in kernels.items():
        library.impl(name, kernel, "CUDA")
    install.library = library  # keeps it
