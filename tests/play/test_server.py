"""The page's server: the files it serves, and the 4xx status of malformed requests."""

import http.client
import json
import os
import random
import socket
import string
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.play import server as module
from rookworld_rlvr.play.api import PlayApi
from rookworld_rlvr.play.server import FOLDER, MAX_BYTES, Server

JSON = {"Content-Type": "application/json"}
# Seconds between two looks for an end. The default, 0.5, is longer than most tests.
POLL_S = 0.01


def call(
    server: Server, method: str, path: str, body: bytes | str = b"", headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Return status and content."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        content = response.read()
        is_json = response.getheader("Content-Type") == "application/json"
        return response.status, json.loads(content) if is_json and content else content
    finally:
        connection.close()


def test_page_and_all_its_files_are_served(server: Server) -> None:
    assert call(server, "GET", "/")[0] == 200
    for path in FOLDER.rglob("*"):
        if path.is_file():
            status, content = call(server, "GET", f"/{path.relative_to(FOLDER).as_posix()}")
            assert status == 200 and (content == path.read_bytes() or path.suffix == ".json")
    status, content = call(server, "GET", "/sprite.svg")
    assert status == 200 and all(f'id="{color}{piece}"'.encode() in content for color in "wb" for piece in "pnbrqk")


def test_api_request_is_answered(server: Server) -> None:
    status, response = call(server, "POST", "/api/position", json.dumps({"moves": ["e2e4"]}), JSON)
    assert status == 200 and response["san"] == ["e4"]
    assert call(server, "POST", "/api/models", "{}", JSON) == (200, {"models": ["tiny", "other"]})


@pytest.mark.parametrize(("method", "path", "body", "headers", "status"), [
    ("GET", "/nope", b"", {}, 404), ("GET", "/../choice.py", b"", {}, 404), ("GET", "/%2e%2e/choice.py", b"", {}, 404),
    ("POST", "/api/nope", b"{}", JSON, 404), ("POST", "/api/position", b"{", JSON, 400),
    ("POST", "/api/position", b"[]", JSON, 400), ("POST", "/api/position", b"\xff", JSON, 400),
    ("POST", "/api/position", b"[" * 60_000, JSON, 400), ("POST", "/api/position", b'{"start": "x"}', JSON, 400),
    ("POST", "/api/position", b'{"start": ' + b"1" * 5000 + b"}", JSON, 400),
    ("POST", "/api/position", b"{}", {"Content-Type": "text/plain"}, 415),
    ("POST", "/api/position", b"{}", JSON | {"Host": "evil.example"}, 403),
    ("GET", "/", b"", {"Host": "evil.example"}, 403),
    ("POST", "/api/position", b" " * (MAX_BYTES + 1), JSON, 413),
    ("POST", "/api/position", b"", {"Content-Length": "x"}, 411),
    ("PUT", "/", b"", {}, 405), ("BREW", "/", b"", {}, 405),
])  # fmt: skip
def test_bad_request_gets_4xx_status_and_one_line_error(
    server: Server, method: str, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    try:
        returned, content = call(server, method, path, body, headers)
    except (ConnectionError, BrokenPipeError):
        # The refusal may be sent before the client has sent all of a body that is too large.
        assert status == 413
        return
    assert returned == status and list(content) == ["error"] and "\n" not in content["error"]


@pytest.mark.parametrize(("host", "called", "status"), [
    ("0.0.0.0", "evil.example", 403), ("0.0.0.0", "192.168.1.7:8321", 200), ("0.0.0.0", "[fe80::1]:8321", 200),
    ("0.0.0.0", socket.gethostname(), 200), ("0.0.0.0", "localhost:8321", 200),
    ("127.0.0.2", "evil.example:8321", 403), ("127.0.0.2", "127.0.0.2:8321", 200), ("127.0.0.1", "192.168.1.7", 403),
])  # fmt: skip
def test_foreign_host_header_is_refused_on_every_listen_address(
    api: PlayApi, host: str, called: str, status: int
) -> None:
    with Server(host, 0, api) as opened:
        thread = threading.Thread(target=opened.serve_forever, args=(POLL_S,), daemon=True)
        thread.start()
        returned, _ = call(opened, "POST", "/api/models", "{}", JSON | {"Host": called})
        opened.shutdown()
        thread.join()
    assert returned == status


def test_thousand_malformed_requests_get_no_5xx_and_server_survives(server: Server) -> None:
    rng = random.Random(7)
    paths = ["/", "/api/position", "/api/answer", "/api/predict", "/api/models", "/page.js", "*", "", "//", "/\x00"]
    values = ["", "x", 3, -1, None, True, [], {}, ["e2e4"], ["e2e4"] * 2000, 1e400, "P" * 500, "8/8 w - -"]
    answered = 0
    for number in range(1000):
        kind = number % 4
        if kind == 0:
            line = "".join(rng.choices(string.printable, k=rng.randint(0, 200)))
            raw = line.encode("latin-1")
        elif kind == 1:
            length = rng.choice(["-1", "99999999999", "x", "0", "12", ""])
            head = f"POST {rng.choice(paths)} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}"
            raw = f"{head}\r\n\r\n{{}}".encode()
        else:
            names = ["start", "moves", "model", "temperature", "move"]
            request = {name: rng.choice(values) for name in rng.sample(names, rng.randint(1, 5))}
            # No request reaches the model, because refusals are the subject and are quick.
            request["model"] = rng.choice([-1, 99, "0", None])
            body = json.dumps(request)[: rng.randint(1, 3000)]
            method = rng.choice(["POST", "POST", "GET", "DELETE", "post"])
            raw = (
                f"{method} {rng.choice(paths)} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}"
            ).encode()
        with socket.create_connection(server.server_address[:2], timeout=30) as connection:
            connection.sendall(raw + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            message = b""
            try:
                while chunk := connection.recv(65536):
                    message += chunk
            except ConnectionResetError:
                pass
        if message.startswith(b"HTTP/"):
            answered += 1
            assert message.split()[1][:1] in (b"2", b"4"), (raw[:300], message[:300])
    assert answered > 500
    assert call(server, "POST", "/api/models", "{}", JSON)[0] == 200


def test_stalled_client_is_disconnected_after_timeout(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Handler, "timeout", 0.2)
    with socket.create_connection(server.server_address[:2], timeout=30) as connection:
        connection.sendall(b"POST /api/position HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        while connection.recv(4096):
            pass


@pytest.fixture
def small_server(api: PlayApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Yield a server with four connections at a time and a time limit of half a second."""
    monkeypatch.setattr(module._Handler, "timeout", 0.5)
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 4)
    with Server("127.0.0.1", 0, api) as opened:
        thread = threading.Thread(target=opened.serve_forever, args=(POLL_S,), daemon=True)
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()


HEAD = b"POST /api/models HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"


@pytest.mark.parametrize("sent", [HEAD + 100 * b" ", b"GET /" + 200 * b"x", HEAD[:-2] + 100 * b"x: y\r\n"])
def test_client_that_drips_its_request_is_disconnected_after_the_time_limit(small_server: Server, sent: bytes) -> None:
    started = time.monotonic()
    with socket.create_connection(small_server.server_address[:2], timeout=30) as connection:
        connection.sendall(sent[:-100])
        # The pauses are far below the limit, which is for the request as a whole.
        with pytest.raises(OSError):
            for byte in sent[-100:]:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
    assert time.monotonic() - started < 3


def test_client_that_sends_several_requests_has_the_time_limit_for_each(small_server: Server) -> None:
    connection = http.client.HTTPConnection(*small_server.server_address[:2], timeout=60)
    for _ in range(4):
        connection.request("POST", "/api/models", "{}", JSON)
        assert connection.getresponse().read()
        time.sleep(0.3)
    connection.close()


def test_connections_above_the_limit_wait_for_stalled_ones_to_end(small_server: Server) -> None:
    before = threading.active_count()
    stalled = [socket.create_connection(small_server.server_address[:2], timeout=30) for _ in range(12)]
    time.sleep(0.2)
    assert threading.active_count() - before <= 4
    assert call(small_server, "POST", "/api/models", "{}", JSON)[0] == 200
    for connection in stalled:
        connection.close()


def test_connections_that_are_kept_open_make_room_for_others(small_server: Server) -> None:
    address, ended = small_server.server_address[:2], threading.Event()

    def stay() -> None:
        connection = http.client.HTTPConnection(*address, timeout=60)
        while not ended.is_set():
            connection.request("POST", "/api/models", "{}", JSON)
            connection.getresponse().read()
            time.sleep(0.05)
        connection.close()

    clients = [threading.Thread(target=stay) for _ in range(4)]
    for client in clients:
        client.start()
    time.sleep(0.2)
    started = time.monotonic()
    assert call(small_server, "POST", "/api/models", "{}", JSON)[0] == 200
    assert time.monotonic() - started < 5
    ended.set()
    for client in clients:
        client.join()


def test_hundred_clients_at_once_are_all_answered(api: PlayApi) -> None:
    with Server("127.0.0.1", 0, api) as opened:
        start, statuses = threading.Barrier(101), []

        def ask() -> None:
            start.wait()
            statuses.append(call(opened, "POST", "/api/models", "{}", JSON)[0])

        clients = [threading.Thread(target=ask) for _ in range(100)]
        for client in clients:
            client.start()
        # All of them connect before the server begins.
        start.wait()
        time.sleep(0.3)
        serving = threading.Thread(target=opened.serve_forever, args=(POLL_S,), daemon=True)
        serving.start()
        for client in clients:
            client.join()
        opened.shutdown()
        serving.join()
    assert statuses == 100 * [200]


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_page_is_served_on_an_address_of_ip_version_6(api: PlayApi, host: str) -> None:
    try:
        opened = Server(host, 0, api)
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    with opened:
        thread = threading.Thread(target=opened.serve_forever, args=(POLL_S,), daemon=True)
        thread.start()
        assert opened.address == f"http://[::1]:{opened.server_port}/" and opened.is_private
        for name, status in (("[::1]:80", 200), ("[::1]", 200), ("localhost", 200), ("evil.example", 403)):
            assert call(opened, "POST", "/api/models", "{}", JSON | {"Host": name})[0] == status
        opened.shutdown()
        thread.join()


def test_play_command_prints_address_and_serves_until_interrupted() -> None:
    command = [sys.executable, "-m", "rookworld_rlvr", "play", "--port", "0"]
    # The terminal's encoding lacks the dots.
    given = {"env": os.environ | {"PYTHONIOENCODING": "ascii"}, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **given) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "loading tiny?\n"
        said = process.stdout.readline()
        assert said.startswith("open http://127.0.0.1:") and "Ctrl-C" in said
        process.send_signal(2)
        assert process.wait(30) == 0 and process.stderr.read() == ""


@pytest.mark.parametrize(("given", "message"), [
    (["--model", "/nope"], "/nope"), (["--port", "99999"], "play: "), (["--port", "x"], "play: argument --port"),
    (["--host", "256.1.1.1", "--port", "0"], "play: "),
])  # fmt: skip
def test_play_refuses_invalid_arguments_in_one_line(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["play", *given]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
