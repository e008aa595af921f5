"""No exchange between ranks depends on a condition that only one rank knows, because the other ranks would wait.

The tests search syntax trees. An exchange is a collective call, such as `world.barrier`, or a call of a function that
makes one. A condition is the test of an `if`, a loop, `and`, `or`, `match` or an early `return` before the exchange.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "rookworld_rlvr"
PACKAGES = ("model", "rollout", "stability", "training")
BUILDERS = ("app/build.py", "app/generators.py")
# These files define the exchanges.
DEFINING = ("model/world.py", "model/ranks.py")
EXCHANGES = {"all_gather", "gather_in_order", "barrier", "rank_0_only", "any", "sum_gradients"}
# Methods of other objects that make an exchange.
METHODS = {"logprob_table"}
EQUAL_ON_ALL_RANKS = {
    # Values of the configuration.
    "config.kind in VLLM",
    "config.kind is GeneratorKind.vllm_server",
    "config.resume",
    "context.config.kl.form is KLForm.in_reward",
    "context.config.objective.updates == 1 and context.config.kl.form is not KLForm.in_reward",
    "not run.config.evaluation.match_pairs or not run.data.held_out",
    "config.zero_variance is ZeroVariance.keep",
    "context.prefetch is not None",
    "not prefetch.pending",
    "not rows",
    "policy.sharded",
    "range(rounds)",
    "run.config.max_minutes",
    "run.validation_every",
    "step + 1 < context.config.steps",
    "sync is None",
    "world.size == 1 or run.context.policy.sharded or step % COMPARE_EVERY",
    "_validation_due(run, step, last=last)",
    "due",
    # Always false with several ranks.
    "world.size == 1 and cores(policy.device) == 1",
    # Values that follow from groups gathered from all ranks, and from the resulting weights and faults.
    "_parts(batch, updates_per_pass, context.config, report.step)",
    "collected is None or not collected.groups",
    "missing",
    "not tokens.count and (not tokens.expected_value_sum)",
    "range(math.ceil(len(micros) / world.size))",
    "report is None",
    "report.fault is not None",
    "action is Action.restore",
    "not gradients",
    "step < run.config.steps and stopped == 'finished'",
    "stopped != INTERRUPTED",
    "stopped == INTERRUPTED and _finite_state(run.context)",
    # Contents of the run's folder, which all ranks read before anything is written there.
    "checkpoint is not None",
}


def files() -> list[Path]:
    found = [
        *(file for package in PACKAGES for file in (SOURCE / package).rglob("*.py")),
        *map(SOURCE.joinpath, BUILDERS),
    ]
    return sorted(file for file in found if file not in map(SOURCE.joinpath, DEFINING))


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def exchanges(node: ast.AST, known: set[str]) -> bool:
    """Return whether the node is a call that all ranks must make together."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        owner = ast.unparse(node.func.value).split(".")[-1].lstrip("_")
        return node.func.attr in METHODS or (node.func.attr in EXCHANGES and owner == "world")
    return isinstance(node.func, ast.Name) and node.func.id in known


def exchanging(trees: Sequence[ast.AST]) -> list[set[str]]:
    """Return for each file the functions known there that make an exchange, directly or through another function."""
    imported = [
        {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        for tree in trees
    ]
    known: list[set[str]] = [set() for _ in trees]
    while True:
        anywhere = set().union(*known)
        visible = [own | names & anywhere for own, names in zip(known, imported, strict=True)]
        found = [
            {one.name for one in functions(tree) if any(exchanges(n, names) for n in ast.walk(one))}
            for tree, names in zip(trees, visible, strict=True)
        ]
        if found == known:
            return visible
        known = found


def conditions(node: ast.AST, known: set[str], above: tuple[ast.expr, ...] = ()) -> Iterator[tuple[ast.expr, ast.Call]]:
    """Yield each condition with an exchange that depends on it."""
    if exchanges(node, known) and isinstance(node, ast.Call):
        yield from ((condition, node) for condition in above)
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield from conditions(test, known, above)
            rest = [child for child in ast.iter_child_nodes(node) if child is not test]
            yield from in_turn(rest, known, (*above, test))
        case ast.For(iter=turns):
            yield from conditions(turns, known, above)
            yield from in_turn([*node.body, *node.orelse], known, (*above, turns))
        case ast.BoolOp(values=values):
            for number, value in enumerate(values):
                yield from conditions(value, known, (*above, *values[:number]))
        case ast.Match(subject=subject):
            yield from in_turn(node.cases, known, (*above, subject))
        case _:
            yield from in_turn(list(ast.iter_child_nodes(node)), known, above)


def in_turn(
    nodes: Sequence[ast.AST], known: set[str], above: tuple[ast.expr, ...]
) -> Iterator[tuple[ast.expr, ast.Call]]:
    """Yield the `conditions` of nodes in order; those after an early end also depend on the condition of that end."""
    for node in nodes:
        yield from conditions(node, known, above)
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Break | ast.Continue):
            above = (*above, node.test)


def conditions_of(trees: Sequence[ast.AST]) -> dict[str, str]:
    """Return the conditions of all exchanges, each with a call that depends on it."""
    pairs = [
        pair
        for tree, known in zip(trees, exchanging(trees), strict=True)
        for function in functions(tree)
        for pair in conditions(function, known)
    ]
    found = {ast.unparse(condition): f"{ast.unparse(call.func)}, line {call.lineno}" for condition, call in pairs}
    # `while True` ends by a statement inside the loop, so True is no condition.
    return {condition: call for condition, call in found.items() if condition != "True"}


def test_collectives_depend_only_on_values_equal_on_all_ranks() -> None:
    found = conditions_of([ast.parse(file.read_text(encoding="utf-8")) for file in files()])
    unknown = {test: call for test, call in found.items() if test not in EQUAL_ON_ALL_RANKS}
    assert not unknown, f"are these equal on all ranks? Then add them to EQUAL_ON_ALL_RANKS: {unknown}"


@pytest.mark.parametrize("body", [
    "if mine: world.barrier(work, 'x')",
    "if mine: return\n world.barrier(work, 'x')",
    "mine and context.world.any(flag, 'x')",
    "for one in mine:\n  self._world.rank_0_only(work, 'x')",
    "return world.all_gather(work, 'x') if mine else []",
    "with held():\n  if mine: other(world)",
])  # fmt: skip
def test_collective_under_a_rank_local_condition_is_detected(body: str) -> None:
    other = "def other(world):\n world.barrier(work, 'x')\n"
    assert list(conditions_of([ast.parse(f"{other}def one(world):\n {body}")])) == ["mine"]
    assert not conditions_of([ast.parse(other)])
