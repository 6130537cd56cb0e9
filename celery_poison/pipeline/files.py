"""Directories and small files of the lake, wherever it lies.

In the process that runs Spark this is Hadoop's own file system, so that the lake may lie on anything that
Spark knows. A client of Spark Connect has no Java: there it is pyarrow's, for local paths, S3, GCS and HDFS.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

#: Where a directory appears under its new name with all that it holds, or not at all.
_ATOMIC = frozenset({"", "file", "hdfs", "viewfs", "abfs", "abfss"})


class Files(ABC):
    """Paths are full ones; a directory that is not there is empty."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted."""

    @abstractmethod
    def read(self, path: str) -> str | None:
        """Return the text of a file; None where there is none."""

    @abstractmethod
    def write(self, path: str, text: str) -> None: ...

    @abstractmethod
    def create(self, path: str, text: str) -> bool:
        """Write a file unless there is one; whether it was written."""

    @abstractmethod
    def rename(self, path: str, target: str) -> bool:
        """Rename a file or a directory to a name that is free; whether it was done."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file or a directory with all that it holds; nothing where it is not there."""


def renames_atomically(root: str) -> bool:
    return (urlsplit(root).scheme if "://" in root or root.startswith("file:") else "") in _ATOMIC


def open_files(session: Any, root: str) -> Files:
    """Return the file system on which the lake ``root`` lies."""
    local = _local_path(root)
    if local is not None:
        return LocalFiles()
    if hasattr(session, "_jvm"):
        return HadoopFiles(session, root)
    return ArrowFiles(root)


def _local_path(root: str) -> str | None:
    scheme = urlsplit(root).scheme
    if scheme == "file":
        return urlsplit(root).path
    return root if "://" not in root else None


def absolute(root: str) -> str:
    """Return the root as every process of this machine understands it, without a slash at its end."""
    local = _local_path(root)
    return (str(Path(local).absolute()) if local is not None else root).rstrip("/") or "/"


class LocalFiles(Files):
    def names(self, directory: str) -> list[str]:
        path = Path(directory)
        return sorted(child.name for child in path.iterdir()) if path.is_dir() else []

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: str, text: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(f"{path}.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)

    def create(self, path: str, text: str) -> bool:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(f"{path}.{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        try:
            os.link(fresh, path)  # never seen empty, as one opened with O_EXCL would be
        except FileExistsError:
            return False
        finally:
            fresh.unlink()
        return True

    def rename(self, path: str, target: str) -> bool:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        try:
            Path(path).rename(target)
        except OSError:
            return False
        return True

    def delete(self, path: str) -> None:
        place = Path(path)
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)


class HadoopFiles(Files):
    """Through the session's own Java."""

    def __init__(self, session: Any, root: str) -> None:
        self._jvm: Any = session._jvm
        self._path: Any = self._jvm.org.apache.hadoop.fs.Path
        self._fs: Any = self._path(root).getFileSystem(session._jsc.hadoopConfiguration())

    def names(self, directory: str) -> list[str]:
        path = self._path(directory)
        if not self._fs.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(path))

    def read(self, path: str) -> str | None:
        if not self._fs.exists(self._path(path)):
            return None
        stream = self._fs.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        self._put(path, text, overwrite=True)

    def create(self, path: str, text: str) -> bool:
        if self._fs.exists(self._path(path)):
            return False
        try:
            self._put(path, text, overwrite=False)
        except Exception as error:  # py4j wraps all of Java's in one
            if "AlreadyExists" in str(error):
                return False
            raise
        return True

    def _put(self, path: str, text: str, overwrite: bool) -> None:
        stream = self._fs.create(self._path(path), overwrite)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def rename(self, path: str, target: str) -> bool:
        source, free = self._path(path), self._path(target)
        if self._fs.exists(free) or not self._fs.exists(source):
            return False
        self._fs.mkdirs(free.getParent())
        return bool(self._fs.rename(source, free))

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)


class ArrowFiles(Files):
    """Through pyarrow, which keeps no promise that only one creates: run one ingest at a time there."""

    def __init__(self, root: str) -> None:
        from pyarrow import fs

        self._kinds: Any = fs
        self._fs: Any = fs.FileSystem.from_uri(root)[0]
        self._scheme = f"{urlsplit(root).scheme}://"

    def _inner(self, path: str) -> str:
        return path.removeprefix(self._scheme)

    def _is_there(self, path: str) -> bool:
        info = self._fs.get_file_info(self._inner(path))
        return bool(info.type != self._kinds.FileType.NotFound)

    def names(self, directory: str) -> list[str]:
        selector = self._kinds.FileSelector(self._inner(directory), allow_not_found=True)
        return sorted(info.base_name for info in self._fs.get_file_info(selector))

    def read(self, path: str) -> str | None:
        if not self._is_there(path):
            return None
        with self._fs.open_input_stream(self._inner(path)) as stream:
            return str(stream.read().decode(errors="replace"))

    def write(self, path: str, text: str) -> None:
        with self._fs.open_output_stream(self._inner(path)) as stream:
            stream.write(text.encode())

    def create(self, path: str, text: str) -> bool:
        if self._is_there(path):
            return False
        self.write(path, text)
        return True

    def rename(self, path: str, target: str) -> bool:
        if self._is_there(target) or not self._is_there(path):
            return False
        self._fs.move(self._inner(path), self._inner(target))
        return True

    def delete(self, path: str) -> None:
        if self._fs.get_file_info(self._inner(path)).type == self._kinds.FileType.Directory:
            self._fs.delete_dir(self._inner(path))
        elif self._is_there(path):
            self._fs.delete_file(self._inner(path))
