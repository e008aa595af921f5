"""Tasks: text formats, readers, rewards and measures. `task.py` is the interface; each task has a folder."""

from .registry import all_tasks, fens_of_moves, parse_prompt, register, task_named, task_of
from .task import Task

__all__ = ["Task", "all_tasks", "fens_of_moves", "parse_prompt", "register", "task_named", "task_of"]
