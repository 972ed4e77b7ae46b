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
    stream: int,
) -> None: ...
