from collections.abc import Iterator
from typing import Any, Final

from payments import inspection
from payments.management import base

FRAMES_SHOWN: Final = 8  # of a stack, the innermost
THREADS_SHOWN: Final = 3  # of those that stand at one place, the longest


class Command(base.Command):
    help = (
        "Shows who holds which permits now, and where they stand, in each process of the server and each relay on this"
        " machine; asks no database. Exits 1 if a permit is held longer than anything may take, or a process does not"
        " answer; 2 if none runs."
    )

    def run(self, options: dict[str, Any]) -> base.Result:
        asked = inspection.ask_all()
        if not asked.processes and not asked.silent:
            raise base.CouldNotRun("No server and no relay runs here, with this DATA_DIR and as this user")
        findings = [
            {"kind": "held_too_long", "subject": f"{process['role']} {process['pid']} {limit['limit']}", "detail": held}
            for process in asked.processes
            for limit in process["limits"]
            for held in limit["holders"]
            if held["held_s"] > limit["held_s_max"]
        ]
        findings += [{"kind": "does_not_answer", "subject": str(pid), "detail": {}} for pid in asked.silent]
        data = {"processes": asked.processes, "findings": findings}
        return base.Result(data, list(_lines(asked)), has_findings=bool(findings))


def _lines(asked: inspection.Asked) -> Iterator[str]:
    for pid in asked.silent:
        yield f"{pid} does not answer"
    for process in asked.processes:
        yield f"{process['role']} {process['pid']}"
        for limit in process["limits"]:
            yield (
                f"  {limit['limit']:<10}{limit['in_use']} of {limit['permits']} in use, {limit['waiting']} waiting,"
                f" {limit['refused_total']} refused"
            )
            for stack, holders in _by_stack(limit["holders"]).items():
                oldest_s = max(held["held_s"] for held in holders)
                late = f", longer than {limit['held_s_max']} s" if oldest_s > limit["held_s_max"] else ""
                names = ", ".join(held["thread"] for held in holders[:THREADS_SHOWN])
                more = f" and {len(holders) - THREADS_SHOWN} more" if len(holders) > THREADS_SHOWN else ""
                yield f"    for {oldest_s} s{late}: {names}{more}"
                yield from (f"      {frame}" for frame in stack)


def _by_stack(holders: list[dict[str, Any]]) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Put together who stands at the same place, the longest first: sixty deliveries that wait are one line."""
    places: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for held in sorted(holders, key=lambda held: -held["held_s"]):
        frames = tuple(_short(frame) for frame in held["stack"][-FRAMES_SHOWN:])
        places.setdefault(frames, []).append(held)
    return places


def _short(frame: str) -> str:
    return "/".join(frame.split("/")[-2:])
