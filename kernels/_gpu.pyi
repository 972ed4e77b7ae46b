SCRATCH_BYTES: int

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
