"""The tasks that exist: those of the package, and those that a user's program registers before it calls a command."""

import re
from collections.abc import Iterable
from typing import Any

from .chat.task import ChatTask
from .environment.task import EnvironmentTask
from .policy.task import PolicyTask
from .task import Task
from .types import PromptError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_tasks: dict[str, Task] = {task.name: task for task in (PolicyTask(), EnvironmentTask(), ChatTask())}


def register(task: Task) -> Task:
    """Make a task known to all commands of this process, and return it. Raises ValueError for a name that is taken."""
    if not _NAME.fullmatch(task.name) or task.name in _tasks:
        raise ValueError(f"expected a new task named by one lower-case word, got {task.name!r}; there are {known()}")
    _tasks[task.name] = task
    return task


def all_tasks() -> tuple[Task, ...]:
    """Return all tasks, in the order of their registration."""
    return tuple(_tasks.values())


def known() -> str:
    """Return the names of all tasks as text."""
    return ", ".join(_tasks)


def task_named(name: str) -> Task:
    """Return the task of a name. Raises ValueError for an unknown one."""
    if name not in _tasks:
        raise ValueError(f"expected a task among {known()}, got {name!r}")
    return _tasks[name]


def task_of(prompt: str) -> Task:
    """Return the task of a prompt. Raises PromptError if no task owns it."""
    # The newest first: a task of the user may take over a part of another one's prompts.
    for task in reversed(_tasks.values()):
        if task.owns(prompt):
            return task
    prefixes = " or ".join(repr(task.prefix) for task in _tasks.values() if task.prefix)
    raise PromptError(f"expected a prompt that begins with {prefixes}, got {prompt!r}")


def parse_prompt(prompt: str) -> Any:
    """Parse a prompt of any task. Raises PromptError for a malformed prompt."""
    return task_of(prompt).query(prompt)


def fens_of_moves(prompts: Iterable[str]) -> dict[str, str]:
    """Return the FEN of each prompt whose task names a move, by prompt. Raises PromptError for a malformed prompt."""
    owners = ((prompt, task_of(prompt)) for prompt in dict.fromkeys(prompts))
    parsed = [(prompt, owner, owner.query(prompt)) for prompt, owner in owners]
    return {prompt: query.fen for prompt, owner, query in parsed if owner.names_move}
