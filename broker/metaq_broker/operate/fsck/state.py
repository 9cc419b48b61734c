"""Checks the state file, and repairs it on request: the readable records of a damaged file are written to a new one."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from metaq_broker.log.files.errors import StateDamaged
from metaq_broker.log.files.files import Files
from metaq_broker.log.state.state_records import decode_state, encode_state, salvage_state
from metaq_broker.operate.fsck.findings import StateFindings

_LIVE_ATTEMPTS: Final = 3
KEPT_SUFFIX: Final = ".damaged"


def check_state(files: Files, path: Path, *, live: bool) -> StateFindings | None:
    """Read every record of the state file ``path``; ``None`` if there is none. ``live``: a broker may be writing
    it.
    """
    if not files.exists(path):
        return None
    findings = StateFindings(path)
    for _ in range(_LIVE_ATTEMPTS if live else 1):
        findings.fault = None
        try:
            content = files.read_bytes(path)
            found = decode_state(path, content)
        except StateDamaged as damaged:
            findings.fault = f"damaged at byte {damaged.position}: {damaged.reason}"
        except OSError as error:
            findings.fault = f"cannot be read: {error.strerror or error}"
        else:
            findings.bytes, findings.entries, findings.torn_bytes = len(content), len(found.values), found.cut_bytes
            break
    return findings


def repair_state(files: Files, findings: StateFindings) -> StateFindings:
    """Write the readable records of a damaged file to a new one; the damaged file is kept beside it.

    Nothing changes if the file is intact, or no record can be read.

    Raises:
        OSError: The disk refuses.
    """
    if findings.fault is None:
        return findings
    content = files.read_bytes(findings.path)
    try:
        found = salvage_state(findings.path, content)
    except StateDamaged:
        return findings
    kept = findings.path.with_name(findings.path.name + KEPT_SUFFIX)
    files.write_atomic(kept, content)
    fresh = encode_state(secrets.randbits(64), found.values)
    files.write_atomic(findings.path, fresh)
    findings.repaired, findings.kept = True, kept.name
    findings.bytes, findings.entries, findings.torn_bytes = len(fresh), len(found.values), 0
    return findings
