"""What happens when bytes that a query had to read are gone: one function decides, for everybody."""

from __future__ import annotations

import logging

from metaq_spark.errors import DataLoss

_log = logging.getLogger(__name__)


def report_data_loss(what: str, *, fail: bool) -> None:
    """Fail the query, or log a warning and return, as the option ``failOnDataLoss`` says.

    Raises:
        DataLoss: ``fail`` is true.
    """
    if fail:
        raise DataLoss(what)
    _log.warning("%s. Reading on, because failOnDataLoss is false", what)
