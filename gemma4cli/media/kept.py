"""Downloads that are read again soon, by other pieces of the row that they belong to.

Each process keeps its latest ones, in files without a name, which are gone when the process is, however it ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import BinaryIO

from gemma4cli.media.options import MediaOptions

_MOST = 8  # as many rows have pieces under way in one process, more or less

Download = Callable[[str, MediaOptions], BinaryIO]

_files: OrderedDict[str, tuple[BinaryIO, int]] = OrderedDict()  # by their URL, with their sizes; the last used last


def kept(url: str, options: MediaOptions, download: Download) -> BinaryIO:
    """The body of a URL as an open file, downloaded anew unless `options.keep`; the caller closes the file.

    Together, the files are no larger than `options.max_bytes`. Raises what `download` raises.
    """
    if not options.keep:
        return download(url, options)
    if url not in _files:
        _files[url] = _downloaded(url, options, download)
    _files.move_to_end(url)
    while len(_files) > _MOST or (len(_files) > 1 and sum(size for _, size in _files.values()) > options.max_bytes):
        _, (file, _) = _files.popitem(last=False)
        file.close()
    # Opened anew, not duplicated: each reader has a place of its own in the file.
    return open(f"/proc/self/fd/{_files[url][0].fileno()}", "rb")  # noqa: PTH123 - the caller closes it


def _downloaded(url: str, options: MediaOptions, download: Download) -> tuple[BinaryIO, int]:
    file = download(url, options)
    size = file.seek(0, 2)
    file.fileno()  # moves what is in memory to disk, where it can be opened again
    file.flush()
    return file, size
