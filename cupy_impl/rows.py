"""How rows are laid over threads, for the kernels that reduce along them."""

from dataclasses import dataclass

from reference.contract import ArrayInfo, scalar

MOST_CLUSTER = 8  # blocks, what every GPU with clusters grants
WARP = 32
MOST_THREADS = 1024
STRAIGHT = 32 * 1024  # bytes of a row of the inputs; up to here several blocks a multiprocessor hide the latencies


def ceil_div(n: int, d: int) -> int:
    return -(-n // d)


def power_of_2_from(n: int) -> int:
    """The least power of 2 that is n or more."""
    return 1 << max(n - 1, 0).bit_length()


def shared_bytes(blocks: int) -> int:
    """Shared memory for the rows of each of so many blocks of a multiprocessor, of whose 228 KiB the system takes 1 KiB
    a block and the reductions less than another."""
    return 228 * 1024 // blocks - 2048


def vector_width(cols: int, *arrays: ArrayInfo) -> int:
    """The most elements that load as one, a power of 2: every row of every array, cols long, is made of whole ones.

    An access has 16 bytes at most, and none is misaligned. The first array decides what 16 bytes hold.
    """
    sizes = [scalar(array.dtype).itemsize for array in arrays]
    width = 16 // sizes[0]
    while cols % width or any(a.address % min(16, width * size) for a, size in zip(arrays, sizes)):
        width //= 2
    return width


@dataclass(frozen=True)
class Tile:
    """What the threads of a block own.

    vector: elements of an access. team: threads of a block that share a row. vectors: of each of them. teams: rows
    that a block has at once. shares: blocks that share a row. stages: rows in shared memory or on their way there.
    """

    vector: int
    team: int
    vectors: int
    teams: int = 1
    shares: int = 1
    stages: int = 0

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.team * self.teams

    @property
    def held(self) -> int:
        """Elements that a block holds of its rows, those past the end counted too."""
        return self.block * self.vectors * self.vector

    @property
    def defines(self) -> tuple[tuple[str, str], ...]:
        names = ("vector", "team", "vectors", "teams", "stages", "shares")
        return tuple((name.upper(), str(getattr(self, name))) for name in names)


def spread(cols: int, vector: int, values: int, block: int = 0, shares: int = 1) -> Tile:
    """A tile for rows of cols elements, up to ``values`` of them a thread, no stages.

    A team is lanes of a warp, a power of 2, or whole warps; block: threads that teams fill as far as they fit in.
    """
    vectors = ceil_div(cols // vector, shares)
    team = ceil_div(vectors * vector, values)
    team = power_of_2_from(team) if team <= WARP else ceil_div(team, WARP) * WARP
    return Tile(vector, team, ceil_div(vectors, team), max(1, block // team), shares)


def packed_tile(cols: int, vector: int, itemsize: int, arrays: int = 1) -> Tile | None:
    """Rung 6's tile, None for rows too wide for it. arrays: that are read."""
    values = min(64 // itemsize, 16 * vector)  # single 16-bit elements fill registers as float32 does
    if cols * itemsize * arrays <= STRAIGHT:
        return spread(cols, vector, values, block=128)
    for shares, most in ((1, MOST_THREADS), (4, MOST_THREADS // 2), (MOST_CLUSTER, MOST_THREADS)):
        tile = spread(cols, vector, 2 * values // arrays, shares=shares)
        if tile.block <= most:
            return tile
    return None


def resident(cluster: int, multiprocessors: int) -> int:
    """Clusters that run at once, one block a multiprocessor.

    The blocks of a cluster share a group of 16 or 18 multiprocessors, of which clusters of more than 2 leave some idle.
    """
    return max(1, (multiprocessors // MOST_CLUSTER * MOST_CLUSTER if cluster > 2 else multiprocessors) // cluster)
