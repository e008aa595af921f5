"""Calls to a vLLM server that was started by `vllm_serve`, each tried once."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from .generator import GeneratorError


class ServerGoneError(GeneratorError):
    """Error for a server that did not answer, or failed; another try may succeed."""


class VLLMServer:
    """Client of the server at a URL."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        # Connects directly, even if a proxy is configured.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> Any:
        return self._request(urllib.request.Request(self.url + path))

    def post(self, path: str, body: Any = None) -> Any:
        data = json.dumps({} if body is None else body).encode()
        return self._request(urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}))

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the worker extension and return its answer."""
        return self.post("/collective_rpc", {"method": method, "kwargs": arguments})["results"][0]

    def _request(self, request: urllib.request.Request) -> Any:
        """Return the answer. Raises ServerGoneError if the server is gone or failed, GeneratorError if it refuses."""
        what = f"{request.get_method()} {request.full_url}"
        try:
            with self._opener.open(request, timeout=self.timeout_s) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            kind = ServerGoneError if error.code >= 500 else GeneratorError
            raise kind(f"vllm_server: expected an answer to {what}, got {error.code}: {_reason(error)}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise ServerGoneError(f"vllm_server: expected an answer to {what}, got: {reason}") from error


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the server's message in one line."""
    text = error.read().decode(errors="replace")
    try:
        return " ".join(str(json.loads(text)["error"]["message"]).split())
    except (ValueError, KeyError, TypeError):
        return " ".join(text.split())[:200]
