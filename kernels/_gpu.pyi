from collections.abc import Sequence

SCRATCH_BYTES: int
MAX_INPUTS: int
MAX_SHARDS: int
PLAIN_VALUES: int

def encode(
    values: int,
    count: int,
    dtype: int,
    frame: int,
    scratch: int,
    codec: str,
    menu: int,
    max_blocks: int,
    device: int,
    stream: int,
) -> None: ...
def decode(
    frame: int,
    frame_bytes: int,
    dtype: int,
    count: int,
    values: int,
    status: int,
    max_blocks: int,
    device: int,
    stream: int,
) -> None: ...
def decode_reduce(
    op: int,
    dtype: int,
    count: int,
    divisor: int,
    before: int,
    inputs: Sequence[int],
    frame_bytes: Sequence[int],
    out: int,
    status: int,
    max_blocks: int,
    device: int,
    stream: int,
) -> None: ...
def decode_accumulate(
    op: int,
    dtype: int,
    count: int,
    before: int,
    inputs: Sequence[int],
    frame_bytes: Sequence[int],
    accumulators: int,
    status: int,
    max_blocks: int,
    device: int,
    stream: int,
) -> None: ...
def decode_reduce_encode(
    op: int,
    dtype: int,
    count: int,
    divisor: int,
    before: int,
    inputs: Sequence[int],
    frame_bytes: Sequence[int],
    like: int,
    base_shift: int,
    out: int,
    frame: int,
    scratch: int,
    status: int,
    max_blocks: int,
    device: int,
    stream: int,
) -> None: ...
def encode_shards(
    values: Sequence[int],
    counts: Sequence[int],
    frames: Sequence[int],
    dtype: int,
    scratch: int,
    codec: str,
    menu: int,
    max_blocks: int,
    device: int,
    stream: int,
) -> None: ...

# The runtime. Memory, streams and events are addresses and handles; `device` is theirs.
def device_count() -> int: ...
def current_device() -> int: ...
def place(memory: int) -> tuple[int, int]: ...
def allocate(nbytes: int, device: int) -> int: ...
def release(memory: int, device: int) -> None: ...
def allocate_pinned(nbytes: int, device: int) -> int: ...
def release_pinned(memory: int, device: int) -> None: ...
def create_stream(device: int) -> int: ...
def destroy_stream(stream: int, device: int) -> None: ...
def synchronize_stream(stream: int, device: int) -> None: ...
def copy(to: int, source: int, nbytes: int, device: int, stream: int) -> None: ...
def set_bytes(memory: int, value: int, nbytes: int, device: int, stream: int) -> None: ...
def create_event(device: int) -> int: ...
def destroy_event(event: int, device: int) -> None: ...
def record_event(event: int, device: int, stream: int) -> None: ...
def query_event(event: int, device: int) -> bool: ...
def synchronize_event(event: int, device: int) -> None: ...
def wait_for_event(stream: int, device: int, event: int) -> None: ...
