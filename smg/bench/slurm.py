"""Carry out a plan as jobs of a Slurm cluster: one array, of which each task is a `smg run`.

Slurm schedules, and a run resumes by itself. A task that Slurm stops (preemption, the time limit) writes a checkpoint,
exits with 130 and goes back into the queue. The jobs do not need the process that submitted them: it may be left, and
the same command rejoins them. Where a run stands is known from `squeue` and from the run's own files.

FOLDER/slurm/NAME.sh      the script of an array whose jobs are called NAME
FOLDER/slurm/NAME.json    its runs, in the order of its tasks
FOLDER/slurm/NAME_0.log   what a task printed
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smg.bench.folder import FAILURE
from smg.bench.planned_runs import PlannedRun
from smg.bench.slurm_queue import Queue, ask, queue, submitted
from smg.bench.state import Active, OnFinished, OnPoll, PlannedBench
from smg.errors import SmgError
from smg.files import locked, replacing, write_json

POLL = 5.0  # seconds between two looks at the queue
SETTLE = 30.0  # seconds that a shared folder may take to show what a task wrote last
SILENCE = 600.0  # seconds without an answer of Slurm's controller after which a bench is left
RUNNING = "RUNNING"

SCRIPT = r"""#!/bin/bash
{directives}

# One task is one run. Stopped by Slurm, it writes a checkpoint, exits with 130 and goes back into the queue.
runs=(
{runs}
)
run={folder}/${{runs[$SLURM_ARRAY_TASK_ID]}}
task=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
stops=0
trap 'stops=$((stops + 1)); kill -TERM "$smg" 2>/dev/null' TERM
{command} 2>"$run/slurm.err" &
smg=$!
[ "$stops" -eq 0 ] || kill -TERM "$smg"
wait "$smg"; code=$?
for ((waits = 0; waits < stops; waits++)); do  # each signal ends one `wait` early
    wait "$smg"; again=$?
    [ "$again" -eq 127 ] || code=$again
done
cat "$run/slurm.err" >&2
if [ "$code" -eq 130 ] || [ "$code" -eq 143 ]; then
    # A job that was cancelled is no longer running, and would come back to life.
    [ "$(squeue --noheader --jobs "$task" --states all --format %T)" != RUNNING ] || scontrol requeue "$task"
elif [ "$code" -ne 0 ]; then
    [ "$code" -ne 137 ] || echo "smg: killed by SIGKILL (too little memory?)" >>"$run/slurm.err"
    mv "$run/slurm.err" "$run/{failure}"
fi
rm -f "$run/slurm.err"
exit "$code"
"""


@dataclass(frozen=True)
class Resources:
    """What is asked of Slurm for each run; the cluster's defaults where nothing is."""

    partition: str = ""
    gres: str = ""  # such as gpu:1
    time: str = ""  # limit of one stretch: a run that reaches it is requeued
    at_once: int = 0  # runs at a time; 0: as many as Slurm lets
    more: tuple[str, ...] = ()  # further options of sbatch, such as account=radiology

    def directives(self) -> list[str]:
        """Return the options as sbatch reads them."""
        named = {"partition": self.partition, "gres": self.gres, "time": self.time}
        given = [f"--{name}={value}" for name, value in named.items() if value]
        return given + [f"--{word.strip().lstrip('-')}" for word in self.more]


@dataclass
class Task(Active):
    """A run's task, in the queue or running."""

    name: str = field(kw_only=True)  # of its array's jobs
    index: int = field(kw_only=True)
    missing_since: float | None = None  # when it was first not in the queue


@dataclass
class SlurmBench(PlannedBench[Task]):
    """A plan's runs, carried out by a Slurm cluster. Folder and data must be seen by all of its nodes."""

    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        self.folder, self.data = self.folder.resolve(), self.data.resolve()
        plain = re.sub(r"[^\w.-]", "-", self.folder.name)  # squeue takes names in a list with commas
        self._name = f"smg-{plain}-{secrets.token_hex(3)}"
        self._silent_since: float | None = None  # when the controller first did not answer

    def script(self, runs: Sequence[PlannedRun]) -> str:
        """Return the script of an array that carries out these runs."""
        at_once = f"%{self.resources.at_once}" if self.resources.at_once else ""
        directives = [
            f"--job-name={self._name}",
            f"--array=0-{len(runs) - 1}{at_once}",
            "--requeue",
            "--open-mode=append",
            "--signal=B:TERM@120",  # seconds before the time limit
            "--ntasks=1",
            f"--cpus-per-task={self.threads_of_a_run()}",
            "--output=" + shlex.quote(f"{_escaped(self.folder / 'slurm')}/{self._name}_%a.log"),
            *self.resources.directives(),
        ]
        # All runs have one command but for their folder.
        folder = str(runs[0].folder(self.folder))
        command = shlex.join(self.words(runs[0])).replace(shlex.quote(f"{folder}/run.yaml"), '"$run/run.yaml"')
        return SCRIPT.format(
            directives="\n".join(f"#SBATCH {line}" for line in directives),
            runs="\n".join(f"    {shlex.quote(str(run.folder(Path())))}" for run in runs),
            folder=shlex.quote(str(self.folder)),
            command=command.replace(f"--out {shlex.quote(folder)}", '--out "$run"'),
            failure=FAILURE,
        )

    def dry_run(self) -> str:
        """Return the script that would be submitted; empty if everything is done. Nothing is written."""
        todo = [run for run in self.plan.runs() if not self._is_done(run)]
        return self.script(todo) if todo else ""

    def go(self, on_poll: OnPoll, on_finished: OnFinished) -> None:
        """Submit what is neither done nor in the queue, and follow all of it to the end."""
        with locked(self.folder):
            self.sort()
            self._rejoin()
            if self.todo:
                self._submit()
            states: Queue = {}
            while self.active:
                states = self._queue(states)
                for task in list(self.active):
                    self._look_at(task, states, on_finished)
                self.workers = max(1, sum(not task.waits for task in self.active))
                on_poll()
                if self.active:
                    time.sleep(POLL)

    def _queue(self, before: Queue) -> Queue:
        """Return the tasks in the queue; for some minutes those of `before`, if the controller does not answer."""
        try:
            states = queue([task.name for task in self.active])
        except SmgError:
            self._silent_since = self._silent_since or time.monotonic()
            if not before or time.monotonic() - self._silent_since > SILENCE:
                raise
            return before
        self._silent_since = None
        return states

    def _rejoin(self) -> None:
        """Follow the tasks of earlier commands that are still in the queue."""
        arrays = submitted(self.folder)
        states = queue(list(arrays))
        for run in list(self.todo):
            for name, runs in arrays.items():
                index = runs.index(here) if (here := str(run.folder(Path()))) in runs else None
                if index is not None and (name, index) in states:
                    self.todo.remove(run)
                    self.active.append(self._task(run, name, index))
                    break

    def _task(self, run: PlannedRun, name: str, index: int) -> Task:
        stands = self.stands(run)
        return Task(run, time.monotonic(), stands.share, stands, "queue", name=name, index=index)

    def _submit(self) -> None:
        """Submit an array of all runs to come."""
        for run in self.todo:
            self.command(run)
        path = self.folder / "slurm" / f"{self._name}.sh"
        with replacing(path) as temporary:
            temporary.write_text(self.script(self.todo))
        # Written before the jobs are submitted: if this process dies, the next one finds the jobs by their name.
        write_json(path.with_suffix(".json"), {"runs": [str(run.folder(Path())) for run in self.todo]})
        try:
            ask("sbatch", "--parsable", str(path))
        except SmgError:
            path.with_suffix(".json").unlink()
            raise
        self.active += [self._task(run, self._name, index) for index, run in enumerate(self.todo)]
        self.todo = []

    def _look_at(self, task: Task, states: Queue, on_finished: OnFinished) -> None:
        """Note where a task is, and whether its run has ended."""
        folder = task.run.folder(self.folder)
        state, reason = states.get((task.name, task.index), ("", ""))
        waited, task.waits = task.waits, "" if state == RUNNING else f"{state.lower()} ({reason})"
        if waited and not task.waits:
            task.begun, task.begun_at = time.monotonic(), self.stands(task.run).share
        if not task.waits:
            self.look_at(task)
        fault = None
        if not (folder / "results.json").exists():
            if state:
                task.missing_since = None
                return
            task.missing_since = task.missing_since or time.monotonic()
            if time.monotonic() - task.missing_since < SETTLE:
                return
            fault = self._fault(task, folder)
        self.end(task, fault)
        on_finished(task.run, fault)

    def _fault(self, task: Task, folder: Path) -> str:
        """Return the last line of a failed run's message, or what is known of a run that left none."""
        log = self.folder / "slurm" / f"{task.name}_{task.index}.log"
        try:
            return (folder / FAILURE).read_text().strip().splitlines()[-1].removeprefix("smg: ")
        except (OSError, IndexError):
            (folder / FAILURE).write_text(
                f"{task.name}, task {task.index}: left the queue without results; see {log}\n"
            )
            return f"left the queue without results (cancelled, or killed by Slurm); see {log}"


def _escaped(path: Path) -> str:
    """Return a path in which sbatch replaces nothing."""
    return str(path).replace("%", "%%")
