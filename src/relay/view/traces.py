"""Traces in the JSON that chrome://tracing and Perfetto read: the passes of a compilation, the kernels of runs on each thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relay.transform.base import StepReport
from relay.view.profiler import CALL, PIECE, RUN, Profile

_COMPILE, _RUN = 1, 2


def trace(
    found: Profile | None,
    steps: Sequence[StepReport] = (),
    stages: Mapping[str, float] | None = None,
    most_runs: int = 20,
) -> dict[str, Any]:
    """``steps`` and ``stages`` are those of a `pipeline.Compilation`; of the profile the first ``most_runs`` runs are drawn."""
    events: list[dict[str, Any]] = []
    if stages:
        events += [_named("process_name", _COMPILE, 0, "compilation")]
        at = 0.0
        for stage, seconds in stages.items():
            events.append(_span(stage, _COMPILE, 0, at, seconds * 1e6, {}))
            inside = at
            for step in steps if stage == "passes" else ():
                arguments = {"changed": step.after is not step.before}
                events.append(_span(step.transformation.name, _COMPILE, 0, inside, step.seconds * 1e6, arguments))
                inside += step.seconds * 1e6
            at += seconds * 1e6
    if found is not None and len(found.events):
        events += [_named("process_name", _RUN, 0, "runs"), _named("thread_name", _RUN, 0, "calls")]
        start = int(found.events["begin"].min())
        workers: set[int] = set()
        for event in found.events[found.events["run"] < most_runs].tolist():
            kind, kernel, worker, run, begin, end, _ = event
            name = f"run {run}" if kind == RUN else found.names[kernel]
            lane = worker + 1 if kind == PIECE else 0
            if kind == PIECE and worker not in workers:
                workers.add(worker)
                events.append(_named("thread_name", _RUN, lane, f"thread {worker}"))
            kinds = {RUN: "run", CALL: "kernel", PIECE: "piece"}
            events.append(_span(name, _RUN, lane, (begin - start) / 1e3, (end - begin) / 1e3, {"what": kinds[kind]}))
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _span(name: str, process: int, lane: int, start: float, length: float, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "X", "ts": start, "dur": length, "pid": process, "tid": lane, "args": arguments}


def _named(what: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}
