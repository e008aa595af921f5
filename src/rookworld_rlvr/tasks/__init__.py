"""Text formats of the two chess tasks: rendering and parsing of prompts and completions."""

from collections.abc import Iterable

from .environment import PREFIX as ENVIRONMENT_PREFIX
from .environment import parse_environment_prompt
from .policy import PREFIX as POLICY_PREFIX
from .policy import parse_policy_prompt
from .types import PolicyPrompt, Prompt, PromptError


def parse_prompt(prompt: str) -> Prompt:
    """Parse a prompt of either task, which is recognised by its prefix. Raises PromptError for a malformed prompt."""
    if prompt.startswith(POLICY_PREFIX):
        return parse_policy_prompt(prompt)
    if prompt.startswith(ENVIRONMENT_PREFIX):
        return parse_environment_prompt(prompt)
    raise PromptError(f"expected a prompt that begins with {POLICY_PREFIX!r} or {ENVIRONMENT_PREFIX!r}, got {prompt!r}")


def policy_fens(prompts: Iterable[str]) -> dict[str, str]:
    """Return the FEN of each policy prompt among `prompts`, by prompt. Raises PromptError for a malformed prompt."""
    parsed = ((prompt, parse_prompt(prompt)) for prompt in dict.fromkeys(prompts))
    return {prompt: query.fen for prompt, query in parsed if isinstance(query, PolicyPrompt)}
