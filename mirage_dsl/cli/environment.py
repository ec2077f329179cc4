"""Commands about the surroundings: env, doctor."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass

import click

from mirage_dsl.cli.output import json_option, negative, say, say_json
from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.settings import CACHE_DIR, SETTINGS

_PACKAGES = ("numpy", "numba", "torch", "triton", "lark", "ml_dtypes")
_OLDEST_TRITON = (3, 6)


@click.command("env")
@json_option
def env_command(as_json: bool) -> None:
    """List the environment variables, their values now, and what they do."""
    if as_json:
        say_json(
            {
                s.name: {"value": str(s.get()), "set": s.text, "help": s.help}
                for s in SETTINGS
            }
        )
        return
    for setting in SETTINGS:
        origin = "default" if setting.text is None else "set"
        say(f"{setting.name} = {setting.get()} ({origin})")
        say(f"    {setting.help}  Takes {setting.expected}.")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: What was looked at.
        ok: Whether the package works with it; a missing GPU is fine.
        found: What was found, and what to do if that is not ok.
    """

    what: str
    ok: bool
    found: str


@click.command("doctor", epilog="Example: mirage-dsl doctor --measure")
@click.option(
    "--measure",
    "measuring",
    is_flag=True,
    help="Measure the GPU first, within a minute; estimates for it use that from then "
    "on.  Nothing else should run on it.",
)
@json_option
def doctor_command(measuring: bool, as_json: bool) -> None:
    """Say what works on this machine; exit 1 if something has to be done."""
    if measuring:
        from mirage_dsl.tune.devices import keep_figures, measure, properties_here

        figures = measure()
        keep_figures(properties_here(), figures)
    findings = [
        Finding("Python", True, platform.python_version()),
        *(_package(name) for name in _PACKAGES),
        _triton(),
        _cache(),
        _settings(),
        *_gpu(),
        _search(),
    ]
    if as_json:
        say_json(findings)
    else:
        for finding in findings:
            say(f"{'ok ' if finding.ok else 'BAD'} {finding.what}: {finding.found}")
    if not all(f.ok for f in findings):
        negative()


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, f"missing; install it: pip install {name}")


def _triton() -> Finding:
    try:
        text = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return Finding("Triton's version", False, "missing")
    ok = tuple(int(p) for p in text.split(".")[:2]) >= _OLDEST_TRITON
    return Finding(
        "Triton's version", ok, text if ok else f"{text}: needs 3.6 or later"
    )


def _cache() -> Finding:
    directory = CACHE_DIR.get()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return Finding("cache", False, f"{error}; set {CACHE_DIR.name}")
    if not os.access(directory, os.W_OK):
        advice = f"{directory} cannot be written; set {CACHE_DIR.name}"
        return Finding("cache", False, advice)
    return Finding("cache", True, str(directory))


def _settings() -> Finding:
    try:
        values = [f"{s.name}={s.get()}" for s in SETTINGS if s.text is not None]
    except MirageError as error:
        return Finding("environment", False, str(error))
    return Finding("environment", True, ", ".join(values) or "all settings at default")


def _gpu() -> list[Finding]:
    """The GPU, and what estimates for it rest on."""
    import torch

    from mirage_dsl.core.hardware import DEFAULT, EARLIEST, architecture_of

    if not torch.cuda.is_available():
        note = "none: kernels can be searched, compiled and interpreted, not timed"
        basis = f"the row {DEFAULT.name}, unless another one is named"
        return [Finding("GPU", True, note), Finding("estimates", True, basis)]
    from mirage_dsl.tune.devices import described, properties_here

    device = properties_here()
    own = architecture_of(device.capability)
    text = f"{device.name}, {own.target}"
    if not own.supported:
        text += f": kernels are made for {EARLIEST.target} and later"
    return [
        Finding("GPU", own.supported, text),
        Finding("estimates", True, described(device)),
    ]


def _search() -> Finding:
    """Search for a small program, from tracing to a certificate."""
    from mirage_dsl.frontend.arguments import spec
    from mirage_dsl.frontend.trace import trace_function
    from mirage_dsl.store.superoptimize import superoptimize

    def scaled(x: object, w: object) -> object:
        return (x @ w) * 2  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]

    try:
        program = trace_function(scaled, [spec((16, 64)), spec((64, 32))])
        result = superoptimize(program, effort="quick", use_cache=False)
    except MirageError as error:
        return Finding("search", False, str(error))
    return Finding("search", True, f"{len(result)} μGraphs in {result.seconds:.1f} s")
