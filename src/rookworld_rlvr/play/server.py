"""HTTP server of the play page, which by default only this machine can reach.

A bad request gets a 4xx status and an error message of one line. Requests are limited in size and in time, and
connections in number. Pages of other sites cannot use the server: every request must name this server as its host, and
a POST request must be JSON.
"""

import json
import mimetypes
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader, RawIOBase
from ipaddress import ip_address
from pathlib import Path
from socket import AF_INET6, gethostname, socket
from typing import Any, ClassVar

import chess
import chess.svg

from .api import BadRequestError, BusyError, PlayApi

# Side of the square in which python-chess draws a piece, in SVG units.
TILE = 45
MIDDLE = TILE / 2
FOLDER = Path(__file__).parent / "page"
MAX_BYTES = 2**16
# Time limits of a client: until it begins its request, from there until it has sent all of it, and for the answer.
TIMEOUT_S = 10.0
# Connections at a time, each with a thread. Others wait until one ends; a browser opens six.
MAX_CONNECTIONS = 64
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
PORT = re.compile(r":[0-9]*$")
POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"


class Server(ThreadingHTTPServer):
    """The server of the page and of its requests; `serve_forever` runs it."""

    daemon_threads = True
    # Clients that connect at once wait in this queue. With the library's 5, some connections are reset.
    request_queue_size = 256

    def __init__(self, host: str, port: int, api: PlayApi) -> None:
        """Bind the address; port 0 chooses a free port. Raises OSError if the address cannot be bound."""
        host = host.removeprefix("[").removesuffix("]")
        if ":" in host:
            self.address_family = AF_INET6
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self.is_full = False
        super().__init__((host, port), _Handler)
        self.requests: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "/api/models": api.models,
            "/api/position": api.position,
            "/api/answer": api.answer,
            "/api/predict": api.predict_board,
        }
        self.files = {f"/{path.relative_to(FOLDER).as_posix()}": path for path in FOLDER.rglob("*") if path.is_file()}
        self.files["/"] = self.files["/index.html"]
        self.is_private = host in LOOPBACK
        self._hosts = LOOPBACK if self.is_private else (*LOOPBACK, host.lower(), gethostname().lower())

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, as soon as one of MAX_CONNECTIONS is free."""
        # A connection that is kept open is closed after its next answer if others wait.
        self.is_full = not self._free.acquire(blocking=False)
        if self.is_full:
            self._free.acquire()
            self.is_full = False
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, then free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, unless the client closed the connection before its answer or was too slow."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def is_called(self, name: str) -> bool:
        """Return True if `name`, the host in a request, stands for this server.

        Another site can make its own name resolve to this machine. It cannot do that with an IP address, which a
        browser sends as it was typed, so a server for other machines accepts every address.
        """
        return name in self._hosts or (not self.is_private and _is_address(name.strip("[]")))

    @property
    def address(self) -> str:
        """The URL for a browser."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if self.address_family == AF_INET6 else f"http://{host!s}:{port}/"


class _TimedInput(RawIOBase):
    """A connection's input with a deadline for each request, which a client that drips its bytes cannot prolong."""

    def __init__(self, connection: socket, limit_s: float) -> None:
        self._connection, self._limit_s = connection, limit_s
        self._deadline: float | None = None

    def expect_request(self) -> None:
        """Start the deadline again with the next bytes."""
        self._deadline = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what there is. Raises TimeoutError after the deadline."""
        left_s = self._limit_s if self._deadline is None else self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left_s)
        try:
            size = self._connection.recv_into(buffer)
        finally:
            # The answer has its own time.
            self._connection.settimeout(self._limit_s)
        if self._deadline is None:
            self._deadline = time.monotonic() + self._limit_s
        return size


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout: ClassVar[float] = TIMEOUT_S

    def setup(self) -> None:
        """Read from the connection with deadlines."""
        super().setup()
        # An open file would keep the connection open.
        self.rfile.close()
        self._input = _TimedInput(self.connection, self.timeout)
        self.rfile = BufferedReader(self._input)

    def handle_one_request(self) -> None:
        """Read and answer a request."""
        self._input.expect_request()
        super().handle_one_request()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self._is_for_us():
            return self._refuse(HTTPStatus.FORBIDDEN, "expected this server's own name or address as the host")
        if path == "/sprite.svg":
            return self._send(HTTPStatus.OK, "image/svg+xml", sprite().encode())
        if path not in self.server.files:
            return self._refuse(HTTPStatus.NOT_FOUND, "no such page")
        file = self.server.files[path]
        kind = mimetypes.guess_type(file.name)[0] or "text/plain"
        self._send(HTTPStatus.OK, f"{kind}; charset=utf-8", file.read_bytes())

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or not length.isascii():
            return self._refuse(HTTPStatus.LENGTH_REQUIRED, "expected Content-Length")
        if len(length) > 9 or int(length) > MAX_BYTES:
            return self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {MAX_BYTES} bytes")
        body = self.rfile.read(int(length))
        if not self._is_for_us():
            return self._refuse(HTTPStatus.FORBIDDEN, "expected this server's own name or address as the host")
        handler = self.server.requests.get(self.path)
        if handler is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "no such request")
        if self.headers.get_content_type() != "application/json":
            return self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        try:
            answer = handler(_arguments(body))
        except BadRequestError as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, f"{error}")
        except BusyError as error:
            return self._refuse(HTTPStatus.TOO_MANY_REQUESTS, str(error))
        self._send(HTTPStatus.OK, "application/json", json.dumps(answer).encode())

    def _is_for_us(self) -> bool:
        """Return True if the request names this server as its host, which a page of another site cannot do."""
        return self.server.is_called(PORT.sub("", self.headers.get("Host", "")).lower())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the library refuses because it is not HTTP or its method is not supported."""
        known = code if 400 <= code < 500 else HTTPStatus.METHOD_NOT_ALLOWED
        self._refuse(HTTPStatus(known), message or "bad request")

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        # The rest of the request is not read, so the connection must be closed.
        self.close_connection = True
        self._send(status, "application/json", json.dumps({"error": " ".join(message.split())}).encode())

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.close_connection = self.close_connection or self.server.is_full
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, so that the console shows no line per request."""


def _arguments(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a request. Raises BadRequestError, also for a number that is too long for Python."""
    try:
        arguments = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(str(error)) from error
    if not isinstance(arguments, dict):
        raise BadRequestError("expected a JSON object")
    return arguments


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def sprite() -> str:
    """Return an SVG file with python-chess's pieces under cm-chessboard's names (`wk` to `bp`), markers, arrowhead."""
    pieces = "".join(
        f'<g id="{"w" if symbol.isupper() else "b"}{symbol.lower()}">{shape}</g>'
        for symbol, shape in chess.svg.PIECES.items()
    )
    markers = (
        f'<g id="markerSquare"><rect width="{TILE}" height="{TILE}"/></g>'
        f'<g id="markerFrame"><rect x="2" y="2" width="{TILE - 4}" height="{TILE - 4}" fill="none"/></g>'
        f'<g id="markerDot"><circle cx="{MIDDLE}" cy="{MIDDLE}" r="7"/></g>'
        f'<g id="markerBevel"><circle cx="{MIDDLE}" cy="{MIDDLE}" r="19" fill="none" stroke="#000"/></g>'
        '<g id="arrowDefault"><path d="M6 6 L28 20 L6 34 Z"/></g>'
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {TILE} {TILE}">{pieces}{markers}</svg>'
