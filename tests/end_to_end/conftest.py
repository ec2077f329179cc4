"""Leaves the slow tests of this directory out unless they are asked for: `-m slow`."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    if "slow" in config.option.markexpr:
        return
    left_out = [i for i in items if HERE in i.path.parents and _is_slow(i)]
    items[:] = [i for i in items if i not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None
