"""Archives as older versions of the job wrote them: the files of a batch are not in a folder of their own."""

from __future__ import annotations

import json
from pathlib import Path


def to_older_form(archive: Path, batch: int) -> None:
    """Give a batch the form that it had before."""
    manifest, data = archive / "manifests" / f"{batch:08}.json", archive / "data" / f"batch={batch:08}"
    tree = json.loads(manifest.read_text())
    for file in sorted(data.glob("*/*.parquet")):
        file.rename(data / file.name)
    for entry in tree["ranges"]:
        entry["files"] = [name.rpartition("/")[2] for name in entry["files"]]
    manifest.write_text(json.dumps(tree))
