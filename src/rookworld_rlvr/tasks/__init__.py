"""Chess as text: the two tasks' prompts and completions, rendered and parsed."""

from collections.abc import Iterable

from .environment import PREFIX as ENVIRONMENT_PREFIX
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
    """A prompt of either task, by its prefix. Raises PromptError."""
    if prompt.startswith(POLICY_PREFIX):
        return parse_policy_prompt(prompt)
    if prompt.startswith(ENVIRONMENT_PREFIX):
        return parse_environment_prompt(prompt)
    raise PromptError(f"expected a prompt that begins with {POLICY_PREFIX!r} or {ENVIRONMENT_PREFIX!r}, got {prompt!r}")


def policy_fens(prompts: Iterable[str]) -> dict[str, str]:
    """The FENs of the policy prompts among these, by prompt. Raises PromptError."""
    parsed = ((prompt, parse_prompt(prompt)) for prompt in dict.fromkeys(prompts))
    return {prompt: query.fen for prompt, query in parsed if isinstance(query, PolicyPrompt)}
