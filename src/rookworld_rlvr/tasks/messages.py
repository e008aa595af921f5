"""Prompts that are chat messages: a JSON list of objects with `role` and `content`, as other libraries have them.

If the last message is the assistant's, it is the beginning of the answer, which the model continues.
"""

import json
from collections.abc import Mapping, Sequence

Message = Mapping[str, str]
ASSISTANT = "assistant"
THINK = "<think>"


def messages_of(prompt: str) -> list[Message] | None:
    """Return the messages of a prompt; None for a prompt that is plain text.

    >>> messages_of('[{"role": "user", "content": "Your move?"}]'), messages_of("P: 8/8/8/8/8/8/8/K1k5 w - - 0 1")
    ([{'role': 'user', 'content': 'Your move?'}], None)
    """
    if not prompt.startswith("[{"):
        return None
    try:
        messages = json.loads(prompt)
    except (ValueError, RecursionError):
        return None
    return messages if all(is_message(message) for message in messages) else None


def is_message(message: object) -> bool:
    """Return whether an object is a message: texts under `role` and `content`."""
    return isinstance(message, dict) and all(isinstance(message.get(name), str) for name in ("role", "content"))


def asks_to_think(messages: Sequence[Message]) -> bool:
    """Return whether the messages ask for thinking between `<think>` and `</think>`."""
    return any(THINK in message["content"] for message in messages)
