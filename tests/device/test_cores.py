"""Items that several cores compute at a time: the order of their results, and an exception."""

import threading
import time
from collections.abc import Callable

import pytest
import torch

from rookworld_rlvr.model.device import map_on_cores

CPU = torch.device("cpu")


def test_results_of_two_cores_come_in_the_order_of_the_items(threads: Callable[[int], None]) -> None:
    """Gradients are added in this order, so a step has the same bits whichever core is faster."""
    threads(2)
    later_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert later_is_done.wait(60)
            time.sleep(0.2)
        else:
            later_is_done.set()
        return item

    assert list(map_on_cores(work, [0, 1], CPU)) == [0, 1]


def test_no_core_is_still_working_after_an_exception(threads: Callable[[int], None]) -> None:
    threads(2)
    begun, ended = threading.Event(), list[int]()

    def work(item: int) -> None:
        if item == 0:
            begun.wait(60)
            raise ValueError
        begun.set()
        time.sleep(0.2)
        ended.append(item)

    with pytest.raises(ValueError):
        list(map_on_cores(work, [0, 1], CPU))
    assert ended == [1]
