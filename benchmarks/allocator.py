"""What keeping freed memory saves: CPU seconds and page faults of a step, with `smg.allocator` and without it.

    python benchmarks/allocator.py                                   # full size: some minutes
    python benchmarks/allocator.py --size 192 --width 16 --json      # the figures, last, as one line
    python benchmarks/allocator.py --methods finetune sga gem        # in turns, as memory then falls to pieces soonest

Each way runs in a process of its own. The first steps, in which the heap grows, are shown and not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys

import torch
from step_cost import Rig, resident

WAYS = {"given back": "0", "kept": "1"}  # SMG_MALLOC
Usage = dict[str, float]


def steps_of(methods: list[str], size: int, width: int, steps: int) -> None:
    """Print what each step used, a line of JSON each."""
    rig = Rig(size, width)
    for number in range(steps):
        step, before = rig.step(methods[number % len(methods)]), resource.getrusage(resource.RUSAGE_SELF)
        step()
        after = resource.getrusage(resource.RUSAGE_SELF)
        usage: Usage = {
            "user": after.ru_utime - before.ru_utime,
            "system": after.ru_stime - before.ru_stime,
            "faults": after.ru_minflt - before.ru_minflt,
            "resident_megabytes": resident("VmRSS"),
            "peak_megabytes": resident("VmHWM"),
        }
        print(json.dumps(usage), flush=True)


def run(way: str, options: list[str]) -> list[Usage]:
    command = [sys.executable, __file__, "--child", *options]
    environment = os.environ | {"SMG_MALLOC": WAYS[way]}
    usages = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            usages.append(usage := json.loads(line))
            print(
                f"{way:11s} step {len(usages):2d}   user {usage['user']:6.2f} s   system {usage['system']:5.2f} s   "
                f"{usage['faults']:9,.0f} faults   resident {usage['resident_megabytes']:5.0f} MB, "
                f"at most {usage['peak_megabytes']:5.0f}",
                flush=True,
            )
    if child.returncode:
        raise SystemExit(child.returncode)
    return usages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm", type=int, default=2, help="steps at the start that are not counted")
    parser.add_argument("--methods", nargs="+", default=["finetune"], help="which take a step each in turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures last, as one line of JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.child:
        steps_of(given.methods, given.size, given.width, given.steps)
        return
    if sys.platform != "linux":
        parser.exit(message="this is about glibc's allocator: nothing to measure here\n")

    usages = {way: run(way, sys.argv[1:])[given.warm :] for way in WAYS}
    figures = {way: {key: statistics.median(u[key] for u in used) for key in used[0]} for way, used in usages.items()}
    for way, used in figures.items():
        seconds, kernel, faults = used["user"] + used["system"], used["system"], used["faults"]
        print(f"{way:11s} {seconds:6.2f} CPU s a step, {kernel:.2f} of it the kernel's; {faults:,.0f} faults")
    without, kept = (figures[way]["user"] + figures[way]["system"] for way in WAYS)
    print(f"kept / given back: {kept / without:.3f} of the CPU time")
    if given.json:
        print(json.dumps({"a_step": figures, "ratio": kept / without, "size": given.size, "width": given.width}))


if __name__ == "__main__":
    main()
