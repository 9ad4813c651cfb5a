import numpy as np
from numpy.typing import NDArray

def unpack(
    block: NDArray[np.uint8],
    begins: NDArray[np.int64],
    row_of: NDArray[np.int64],
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    keys: NDArray[np.int64],
    problems: NDArray[np.uint8],
    crcs: NDArray[np.uint32],
    /,
) -> None: ...
def check(
    frames: NDArray[np.uint8],
    begins: NDArray[np.int64],
    problems: NDArray[np.uint8],
    crcs: NDArray[np.uint32],
    /,
) -> None: ...
def read(
    file: int,
    begins: NDArray[np.int64],
    places: NDArray[np.int64],
    memory: NDArray[np.uint8],
    problems: NDArray[np.uint8],
    crcs: NDArray[np.uint32],
    /,
) -> int: ...
def interleave(shape: NDArray[np.int64], planes: NDArray[np.uint8], images: NDArray[np.uint8], /) -> None: ...
def sum(values: NDArray[np.uint8], sums: NDArray[np.int64], /) -> None: ...
