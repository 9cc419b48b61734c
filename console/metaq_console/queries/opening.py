"""Makes the board of queries with what the extra ``spark`` brings, where that is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metaq_console.cluster.history import History
from metaq_console.cluster.questions import Questions
from metaq_console.queries.board import QUERIES_MAX, QueryBoard, QueryWatch
from metaq_console.queries.options import read_options
from metaq_console.settings import ConsoleSettings


def open_board(settings: ConsoleSettings, questions: Questions, history: History) -> QueryBoard:
    """Return the board for ``settings``. Without the extra, it has no verdicts, and says why."""
    try:
        from metaq_spark.diagnosis.diagnosis import Watch
        from metaq_spark.diagnosis.progress import ProgressLog
    except ImportError as error:
        missing = f'{error.name} is not installed: pip install "metaq-spark[spark]"'
        return QueryBoard(settings.checkpoints, questions, history, _cannot(missing), None, missing)
    options = read_options(settings.client_profile)

    def watch(checkpoint: str, events: Callable[[], Sequence[Mapping[str, Any]]]) -> QueryWatch:
        made: QueryWatch = Watch(checkpoint or None, options=options, progress=events)
        return made

    return QueryBoard(settings.checkpoints, questions, history, watch, ProgressLog(queries_max=QUERIES_MAX))


def _cannot(why: str) -> Callable[..., QueryWatch]:
    def refuse(*_: object) -> QueryWatch:
        raise ModuleNotFoundError(why)

    return refuse
