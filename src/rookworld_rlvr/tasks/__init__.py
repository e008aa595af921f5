"""Chess as text: the two tasks' prompts and completions, rendered and parsed."""

from collections.abc import Iterable

from .environment import parse_environment_prompt
from .policy import PREFIX as POLICY_PREFIX
from .policy import parse_policy_prompt
from .types import (
    EnvironmentCompletion,
    EnvironmentPrompt,
    Example,
    FailureReason,
    ParsedCompletion,
    ParseFailure,
    PolicyCompletion,
    PolicyPrompt,
    Prompt,
    PromptError,
    Task,
)

__all__ = [
    "ParsedCompletion",
    "EnvironmentCompletion",
    "EnvironmentPrompt",
    "Example",
    "FailureReason",
    "ParseFailure",
    "PolicyCompletion",
    "PolicyPrompt",
    "Prompt",
    "PromptError",
    "Task",
    "parse_prompt",
    "policy_fens",
]


def parse_prompt(prompt: str) -> Prompt:
    """A prompt of either task, told by its prefix. Raises PromptError."""
    parse = parse_policy_prompt if prompt.startswith(POLICY_PREFIX) else parse_environment_prompt
    return parse(prompt)


def policy_fens(prompts: Iterable[str]) -> dict[str, str]:
    """The FENs of the policy prompts among these, by prompt. Raises PromptError."""
    parsed = ((prompt, parse_prompt(prompt)) for prompt in dict.fromkeys(prompts))
    return {prompt: found.fen for prompt, found in parsed if isinstance(found, PolicyPrompt)}
