"""A server of OpenAI's chat protocol that samples from a model with our generator; run as a process of its own.

The environment of verifiers has no torch, so the tests start it with the interpreter of another environment:
`python chat_server.py MODEL` prints its port. It has what `vf-eval` asks for: one answer to a list of messages, at once
or as a stream, which here has the whole answer in one event.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import torch

from rookworld_rlvr.app.generators import make_generator
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.rollout.generator import GeneratorConfig
from rookworld_rlvr.rollout.groups import prompt_tokens

MOST_TOKENS = 144


class ChatServer(HTTPServer):
    """It answers one request at a time; the seeds of sampling count them."""

    def __init__(self, model: str) -> None:
        super().__init__(("127.0.0.1", 0), ChatHandler)
        self._policy = load_policy(ModelConfig(path=model), torch.device("cpu"), Precision.fp32)
        self._policy.model.eval()
        self._generator = make_generator(self._policy, GeneratorConfig(max_new_tokens=MOST_TOKENS))
        self._generator.sync(self._policy.model)
        self._answered = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a chat completion. A model without a chat template reads the last message alone."""
        tokenizer = self._policy.tokenizer
        messages = request["messages"]
        prompt = json.dumps(messages) if tokenizer.chat_template else messages[-1]["content"]
        ids = prompt_tokens(tokenizer, prompt)
        self._answered += 1
        with torch.no_grad():
            [[completion]] = self._generator.generate(
                [ids], group_size=1, temperature=request.get("temperature", 1.0), seeds=[self._answered]
            )
        tokens = completion.tokens[: request.get("max_tokens") or request.get("max_completion_tokens") or MOST_TOKENS]
        ended = len(tokens) == len(completion.tokens) and completion.finished
        message = {"role": "assistant", "content": tokenizer.decode(tokens, skip_special_tokens=True)}
        counts = {"prompt_tokens": len(ids), "completion_tokens": len(tokens), "total_tokens": len(ids) + len(tokens)}
        return {
            "id": f"chat-{self._answered}",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop" if ended else "length"}],
            "usage": counts,
        }


class ChatHandler(BaseHTTPRequestHandler):
    """Reads a request to `/v1/chat/completions` and writes the answer."""

    server: ChatServer

    def do_POST(self) -> None:
        if self.path != "/v1/chat/completions":
            self.send_error(404)
            return
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.server.answer(request)
        body = as_stream(answer) if request.get("stream") else json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if request.get("stream") else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing; what the server prints is its port."""


def as_stream(answer: dict[str, Any]) -> bytes:
    """Return a chat completion as server-sent events: the answer, why it ended, the counts of tokens, and the end."""
    [choice] = answer["choices"]
    steps = [
        {"choices": [{"index": 0, "delta": choice["message"], "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        {"choices": [], "usage": answer["usage"]},
    ]
    named = {"id": answer["id"], "object": "chat.completion.chunk", "created": 0, "model": answer["model"]}
    events = [*(json.dumps(named | step) for step in steps), "[DONE]"]
    return "".join(f"data: {event}\n\n" for event in events).encode()


if __name__ == "__main__":
    with ChatServer(sys.argv[1]) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
