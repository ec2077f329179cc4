"""Logging: warnings only, unless `MIRAGE_DSL_LOGS` asks for more or less.

The library logs to children of `logging.getLogger("mirage_dsl")` and never prints.
"""

from __future__ import annotations

import logging

from mirage_dsl.core.settings import LOGS

ROOT = "mirage_dsl"


def setup_logging() -> None:
    """Follow `MIRAGE_DSL_LOGS`: a handler on standard error, a level for each area.

    Calling it again replaces what the last call set, so a changed variable counts.
    """
    root = logging.getLogger(ROOT)
    for handler in [h for h in root.handlers if h.get_name() == ROOT]:
        root.removeHandler(handler)
    levels = LOGS.get()
    handler = logging.StreamHandler()
    handler.setLevel(logging.NOTSET if levels else logging.WARNING)
    handler.set_name(ROOT)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    for area, level in levels.items():
        name = f"{ROOT}.{area}" if area else ROOT
        logging.getLogger(name).setLevel(level.upper())
