"""Metrics for Prometheus over HTTP, on threads of their own: ``GET /metrics``.

The broker's figures are collected in one step of the event loop; free disk space and the figures of the process are
read afterwards, in the request's thread. So a slow disk or client does not delay the broker. This is the only module
that imports prometheus_client.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from metaq_broker.operate.control.measures import Distribution, Measure

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

THREADS_MAX: Final = 8
"""Limit on concurrent requests; further connections are closed."""

REQUEST_S_MAX: Final = 5.0
"""How long a client may be silent, in seconds."""

STOP_POLL_S: Final = 0.05

Figures = Sequence[Measure | Distribution]


class MetricsServer:
    """Serves the result of ``figures``, which is called in the thread of each request."""

    def __init__(self, listener: socket.socket, figures: Callable[[], Figures]) -> None:
        registry = CollectorRegistry()
        registry.register(_Figures(figures))
        ProcessCollector(registry=registry)
        self._server = _Server(listener, _Handler)
        self._server.set_app(_unless_busy(make_wsgi_app(registry)))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_POLL_S,), name="metaq-metrics", daemon=True
        )

    def start(self) -> None:
        """Accept requests. Earlier ones have waited in the kernel."""
        self._thread.start()

    def close(self) -> None:
        """Accept no more requests; requests in progress are completed."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _unless_busy(application: WSGIApplication) -> WSGIApplication:
    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return application(environ, start_response)
        except TimeoutError:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"the broker is too busy to report its figures\n"]

    return serve


class _Figures(Collector):
    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        return [family(figure) for figure in self._figures()]


def family(figure: Measure | Distribution) -> Metric:
    """Convert a figure for prometheus_client."""
    if isinstance(figure, Distribution):
        buckets = [("+Inf" if bound == float("inf") else repr(float(bound)), count) for bound, count in figure.buckets]
        return HistogramMetricFamily(figure.name, figure.text, buckets=buckets, sum_value=figure.total)
    kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
    metric = kind(figure.name, figure.text, labels=figure.label_names)
    for labels, value in figure.values:
        metric.add_metric(labels, value)
    return metric


class _Server(ThreadingMixIn, WSGIServer):
    """A WSGI server on a socket that is bound already, with a limited number of threads."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, handler: type[WSGIRequestHandler]) -> None:
        host, port = listener.getsockname()[:2]
        super().__init__((host, port), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = host, port
        self.setup_environ()
        self.server_activate()
        self._slots = threading.BoundedSemaphore(THREADS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a client may disconnect or be slow."""


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S_MAX

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing for a scrape."""
