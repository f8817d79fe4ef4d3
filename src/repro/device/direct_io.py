"""Direct I/O: read files around the page cache, so that timings are the disk's and no cache memory is used.

Owns direct I/O and its fallback. Must not know what the files contain.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

PAGE = 4096
REQUEST = 4 << 20


def page_aligned(size: int) -> int:
    """`size` in bytes, rounded up to whole pages, as direct I/O requires of lengths and offsets."""
    return -(-size // PAGE) * PAGE


def page_aligned_memory(size: int) -> mmap.mmap:
    """New private memory that starts at a page boundary, as direct I/O requires of addresses."""
    return mmap.mmap(-1, page_aligned(size))


class DirectFile:
    """A file opened for reading around the page cache; threads may share it.

    Attributes:
        path: the file.
        way: `direct` if the file system supports direct I/O; `dropped` if pages go through the cache and are
            dropped from it at once; `cached` if the system supports neither.
    """

    def __init__(self, path: Path) -> None:
        """Open the file; OSError if it cannot be read."""
        self.path = path
        self.way = "direct"
        try:
            self._handle = self._open_direct()
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._handle = os.open(path, os.O_RDONLY)
            self.way = "dropped" if hasattr(os, "posix_fadvise") else "cached"

    def _open_direct(self) -> int:
        """Open with O_DIRECT and read one page, since some file systems refuse only at the first read."""
        if not hasattr(os, "O_DIRECT"):
            raise OSError(errno.EINVAL, "no direct I/O on this system", str(self.path))
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        try:
            os.preadv(handle, [page_aligned_memory(PAGE)], 0)
        except OSError:
            os.close(handle)
            raise
        return handle

    def read_into(self, buffer: memoryview, offset: int, request: int = REQUEST) -> Iterator[slice]:
        """Fill `buffer` from `offset` on; yields the slice that each request has filled.

        Length and offset must be whole pages, and the buffer page-aligned.

        Raises:
            OSError: the disk failed, or the file ends before the buffer is full.
        """
        read_bytes = 0
        while read_bytes < len(buffer):
            window = buffer[read_bytes : read_bytes + request]
            size = os.preadv(self._handle, [window], offset + read_bytes)
            if size == 0:
                raise OSError(
                    errno.EIO, f"ends at byte {offset + read_bytes}, {len(buffer)} were wanted", self.path
                )
            if self.way == "dropped":
                os.posix_fadvise(self._handle, offset + read_bytes, size, os.POSIX_FADV_DONTNEED)
            yield slice(read_bytes, read_bytes + size)
            read_bytes += size

    def read(self, buffer: memoryview, offset: int, request: int = REQUEST) -> None:
        """Fill `buffer` from `offset` on; as `read_into`."""
        for _ in self.read_into(buffer, offset, request):
            pass

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)
