"""Speed of two vLLM servers compared with one, in turns, on the same prompts.

    .venv-vllm/bin/python benchmarks/vllm_servers.py
    .venv-vllm/bin/python benchmarks/vllm_servers.py --namespaces      # as root, with iproute2

Needs the environment with vLLM (`bash scripts/setup.sh vllm`) and two cores. Each server is pinned to a core of its
own, so that two servers have twice the compute of one, as two machines would. This program, their client, shares their
cores. With --namespaces each server has a network namespace of its own, which stands for a host: requests and responses
cross a virtual cable. Weights are synchronised through a folder that all of them can read.

A round requests completions of the same prompts with the same seeds from the first server, from the second, and from
both. The exit code is 1 if completions are missing.
"""

import argparse
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median

import torch

from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rollout.generator import GeneratorConfig
from rookworld_rlvr.rollout.groups import prompt_tokens
from rookworld_rlvr.rollout.vllm_client import VLLMServer
from rookworld_rlvr.rollout.vllm_config import VLLMConfig
from rookworld_rlvr.rollout.vllm_server_pool import VLLMServerPool
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.training.data import default_file

PATIENCE_S = 180
SERVE = "rookworld_rlvr.rollout.vllm_serve"


def random_prompts(policy: Policy, count: int, seed: int) -> list[tuple[int, ...]]:
    """Return token ids of the prompts of random shipped training rows, both tasks mixed."""
    rows = read_corpus(default_file("train.txt")).examples
    return [prompt_tokens(policy.tokenizer, row.prompt) for row in random.Random(seed).sample(rows, count)]


@contextmanager
def network_namespace(number: int) -> Iterator[tuple[list[str], str]]:
    """Make a namespace with a virtual cable to this one; yield the words that run a command in it, and its address."""
    name, here, there = f"rookworld{number}", f"10.77.{number}.1", f"10.77.{number}.2"
    inside = ["ip", "netns", "exec", name]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", f"rw{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("address", "add", f"{here}/24", "dev", f"rw{number}")
        ip("link", "set", f"rw{number}", "up")
        ip("-n", name, "address", "add", f"{there}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield inside, there
    finally:
        ip("netns", "delete", name)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def started(core: int, prefix: Sequence[str], address: str) -> Iterator[str]:
    """Start a server of the shipped model on one core and yield its URL. It ends with the block."""
    port = free_port()
    command = [*prefix, sys.executable, "-m", SERVE, "tiny", "--precision", "fp32", "--host", address]
    command += ["--port", str(port), "--kv-cache-gib", "0.5"]
    process = subprocess.Popen(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        start_new_session=True,
    )
    try:
        yield f"http://{address}:{port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait()


def wait_for(url: str) -> None:
    """Wait until the server answers. Raises SystemExit if it does not answer within PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            VLLMServer(url, timeout_s=PATIENCE_S).get("/v1/models")
            return
        except RuntimeError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"expected a server at {url} within {PATIENCE_S} s, got {error}") from error
            time.sleep(0.5)


def completions_per_s(sampler: VLLMServerPool, prompts: Sequence[tuple[int, ...]], group_size: int) -> float:
    """Return the speed of sampling these prompts. Raises SystemExit if completions are missing."""
    began = time.perf_counter()
    groups = sampler.generate(prompts, group_size=group_size, temperature=1.0, seeds=range(len(prompts)))
    seconds = time.perf_counter() - began
    if [len(group) for group in groups] != [group_size] * len(prompts):
        raise SystemExit(f"expected {group_size} completions of each of {len(prompts)} prompts, got fewer")
    return len(prompts) * group_size / seconds


def arguments_given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=144)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--namespaces", action="store_true", help="a network namespace for each server")
    return parser.parse_args()


def main() -> int:
    given = arguments_given()
    policy = load_policy(ModelConfig(), torch.device("cpu"), Precision.fp32)
    prompts = random_prompts(policy, given.prompts, given.seed)
    with ExitStack() as stack:
        urls = []
        for core in (0, 1):
            place: tuple[list[str], str] = ([], "127.0.0.1")
            if given.namespaces:
                place = stack.enter_context(network_namespace(core))
            urls.append(stack.enter_context(started(core, *place)))
        for url in urls:
            wait_for(url)
        used = {"first server": urls[:1], "second server": urls[1:], "both servers": urls}
        rates: dict[str, list[float]] = {name: [] for name in used}
        # The first round does not count.
        for _ in range(given.rounds + 1):
            for name, some in used.items():
                settings = GeneratorConfig(max_new_tokens=given.max_new_tokens, vllm=VLLMConfig(urls=some))
                sampler = VLLMServerPool(policy.model, settings, eos_id=policy.tokenizer.eos_token_id)
                rates[name].append(completions_per_s(sampler, prompts, given.group_size))
    print("| servers | completions/s |\n|---|---|")
    for name, values in rates.items():
        print(f"| {name} | {median(values[1:]):.1f} ({min(values[1:]):.1f}–{max(values[1:]):.1f}) |")
    ratios = [both / max(alone) for *alone, both in list(zip(*rates.values(), strict=True))[1:]]
    print(f"\nboth / the faster one: {median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
