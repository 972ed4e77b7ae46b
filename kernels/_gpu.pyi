from collections.abc import Sequence

SCRATCH_BYTES: int
MAX_INPUTS: int
MAX_SHARDS: int
PLAIN_VALUES: int
MAX_PEERS: int
MIN_SLOTS_LOG2: int
MAX_SLOTS_LOG2: int
PEER_BLOCK_BYTES: int

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
def region_bytes(slots_log2: int) -> int: ...
def ledger_bytes(slots_log2: int) -> int: ...

class PreparedExchange:
    def launch(self, stream: int) -> None: ...

def prepare_exchange(
    dtype: int,
    word: int,
    codec: str,
    menu: int,
    max_blocks: int,
    at_once: int,
    timeout: int,
    status: int,
    slots_log2: int,
    links: Sequence[tuple[int, int, int]],
    sends: Sequence[tuple[int, int, int]],
    receives: Sequence[tuple[int, int, int]],
    fold: tuple[int, int, int, Sequence[int], int, int, int] | None,
    copy: tuple[int, int, int] | None,
    device: int,
) -> PreparedExchange: ...

LEAST_SLOT_BYTES: int
MOST_SLOT_BYTES: int
PIPE_SLOTS: int
PIPE_WORD_BYTES: int
PIPE_HEAD_WORDS: int

# Pipes are numbers.
def pipe_region_bytes(slot_bytes: int) -> int: ...
def pipe_device_bytes(slot_bytes: int) -> int: ...
def open_pipe(device: int, here: int, there: int, slot_bytes: int) -> int: ...
def close_pipe(pipe: int) -> None: ...
def settle_pipe(pipe: int) -> None: ...
def count_queued(pipe: int) -> tuple[int, int, int, int]: ...
def found_by(pipe: int) -> int: ...

class PreparedPipes:
    def launch(self, stream: int) -> None: ...

def prepare_pipes(
    dtype: int,
    word: int,
    codec: str,
    menu: int,
    max_blocks: int,
    sends: Sequence[tuple[int, int, int]],
    receives: Sequence[tuple[int, int, int]],
    fold: tuple[int, int, int, Sequence[int], int, int, int] | None,
    copy: tuple[int, int, int] | None,
    device: int,
) -> PreparedPipes: ...

# The runtime. Memory, streams and events are addresses and handles; `device` is theirs.
def device_count() -> int: ...
def current_device() -> int: ...
def place(memory: int) -> tuple[int, int]: ...
def allocate(nbytes: int, device: int) -> int: ...
def release(memory: int, device: int) -> None: ...
def allocate_pinned(nbytes: int, device: int) -> int: ...
def release_pinned(memory: int, device: int) -> None: ...
def pin(memory: int, nbytes: int, device: int) -> None: ...
def unpin(memory: int, device: int) -> None: ...
def device_address(memory: int, device: int) -> int: ...
def create_stream(device: int) -> int: ...
def destroy_stream(stream: int, device: int) -> None: ...
def synchronize_stream(stream: int, device: int) -> None: ...
def is_capturing(stream: int, device: int) -> bool: ...
def copy(to: int, source: int, nbytes: int, device: int, stream: int) -> None: ...
def set_bytes(memory: int, value: int, nbytes: int, device: int, stream: int) -> None: ...
def create_event(device: int) -> int: ...
def destroy_event(event: int, device: int) -> None: ...
def record_event(event: int, device: int, stream: int) -> None: ...
def query_event(event: int, device: int) -> bool: ...
def synchronize_event(event: int, device: int) -> None: ...
def wait_for_event(stream: int, device: int, event: int) -> None: ...
def allocate_for_peers(nbytes: int, device: int) -> int: ...
def export_memory(memory: int, device: int) -> bytes: ...
def open_memory(handle: bytes, device: int) -> int: ...
def close_memory(memory: int, device: int) -> None: ...
def enable_peer(device: int, peer: int) -> None: ...
def can_access_peer(device: int, peer: int) -> bool: ...
def identify_device(device: int) -> tuple[str, str]: ...
def find_device(place: str) -> int: ...
