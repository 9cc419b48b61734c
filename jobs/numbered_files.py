"""The stored state of a job: numbered JSON documents in a folder, written atomically and never changed.

``00000000.json``, ``00000001.json`` and so on; other files are ignored. The folder is a local path or a URI that
pyarrow opens (``s3://``, ``hdfs://``, ``gs://``). A document gets its name when it is complete.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from pyarrow import fs

from metaq_spark.checkpoint.folder import sync


class NumberedFiles:
    """The documents of one folder, which need not exist yet."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._files, self._root = open_folder(folder)

    def numbers(self) -> list[int]:
        """Return the numbers of all documents, ascending."""
        found = self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        matches = (re.fullmatch(r"(\d{8,})\.json", file.base_name) for file in found)
        return sorted(int(match[1]) for match in matches if match)

    def read(self, number: int) -> Any:
        """Return one document.

        Raises:
            FileNotFoundError: There is none with this number.
            ValueError: It is damaged; names the file.
        """
        with self._files.open_input_stream(self._path(number)) as stream:
            raw: bytes = stream.read()
        try:
            return json.loads(raw)
        except ValueError as error:
            problem = f"not valid JSON ({error})" if raw.strip() else "empty"
            raise ValueError(
                f"{self.folder}/{number:08}.json: {problem}: it was damaged, as by a power loss; restore it from a copy"
            ) from None

    def refuse_taken(self, number: int) -> None:
        """Refuse a number that a document has.

        Raises:
            FileExistsError: There is one with this number; another process writes to this folder.
        """
        if number in self.numbers():
            raise FileExistsError(f"{self.folder}/{number:08}.json is there already: does the job run twice?")

    def add(self, number: int, document: Any) -> None:
        """Store a document; in a local folder it survives a power loss.

        Raises:
            FileExistsError: As ``refuse_taken``.
        """
        self._files.create_dir(self._root, recursive=True)
        draft = f"{self._root}/.{number:08}.{os.getpid()}.draft"
        with self._files.open_output_stream(draft) as stream:
            stream.write(json.dumps(document, indent=1).encode() + b"\n")
        try:
            self.refuse_taken(number)
            if isinstance(self._files, fs.LocalFileSystem):
                _rename_synced(draft, self._path(number))
            else:
                self._files.move(draft, self._path(number))
        except FileExistsError:
            self._files.delete_file(draft)
            self.refuse_taken(number)
            raise

    def _path(self, number: int) -> str:
        return f"{self._root}/{number:08}.json"


def _rename_synced(draft: str, path: str) -> None:
    """Rename a local file, and write file and folder to the disk. Unlike a rename alone, a file is not replaced."""
    sync(draft)
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # this file system has no hard links
        os.rename(draft, path)
    else:
        os.unlink(draft)
    sync(os.path.dirname(path))


def open_folder(folder: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a folder, and the path within it."""
    return fs.FileSystem.from_uri(folder) if "://" in folder else (fs.LocalFileSystem(), os.path.abspath(folder))


def spark_path(folder: str) -> str:
    """Return the folder as a path for Spark, whose default for paths without a scheme is the cluster's file system."""
    return folder if "://" in folder else f"file://{os.path.abspath(folder)}"
