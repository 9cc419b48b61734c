"""Why a broker could not start."""

from __future__ import annotations

from metaq.errors import MetaqError


class StartFailed(MetaqError):
    """The broker could not start; the text is one sentence for the operator."""
