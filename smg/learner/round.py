"""Train one round on the incoming site with replay, from the start or from the last checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from smg.errors import SmgError, Stopped
from smg.evaluation.subjects import prepared_dice
from smg.evaluation.whole_scan import NotFinite
from smg.gradients.optimiser import Optimiser
from smg.gradients.oracle import AskAgain, Gradient, GradientSource, Oracle, Unanswered
from smg.learner.config import LearnerConfig
from smg.learner.elsewhere import Rows
from smg.learner.merging import Merging, merge
from smg.learner.records import CheckpointFacts, CurvePoint, LoggedStep, PackageVersions
from smg.learner.shared_tensors import copied
from smg.methods import Step, take_step
from smg.methods.step import keep_apart
from smg.prepare.ahead import Ahead, pays
from smg.prepare.augment import Augmentation
from smg.prepare.batches import Iteration
from smg.prepare.cache import Prepared
from smg.prepare.slices import Slices
from smg.prepare.styles import Styles

OnStep = Callable[[int, Step], None]  # (iteration, step), after each iteration
Answering = Callable[[nn.Module, LearnerConfig], GradientSource]  # makes the source of gradients for a round's network


def this_process(network: nn.Module, config: LearnerConfig) -> GradientSource:
    """Return the oracle of this process, which answers for its share of the rows in a data-parallel job."""
    return Oracle(
        network,
        loss=config.segmentation_loss(),
        micro_batch=config.micro_batch,
        precision=config.precision,
        compile=config.compile,
        share=config.share,
    )


class Diverged(SmgError):
    """Error for a loss, a gradient or a weight that is NaN or infinite."""


@dataclass
class Progress:
    """The progress of a round: all that is needed to resume, since every draw is a function of the iteration."""

    iteration: int = 0
    curve: list[CurvePoint] = field(default_factory=list)  # validation DSC
    log: list[LoggedStep] = field(default_factory=list)  # losses, norms and cosines
    best: dict[str, Tensor] = field(default_factory=dict)  # the best weights so far, where they are asked for
    mean: dict[str, Tensor] = field(default_factory=dict)  # of the weights in the second half so far
    merged: dict[str, Tensor] = field(default_factory=dict)  # importances for the next round's merging
    begun: bool = False  # whether `begin_round` was called
    selected: bool = False  # whether the weights are those that close the round: selected, and merged
    ended: bool = False  # whether `end_round` was called
    seconds: float = 0.0  # spent on the round so far

    @property
    def best_dice(self) -> float:
        return max((point.dsc for point in self.curve), default=-math.inf)


@dataclass
class Training:
    """A round's training loop over one network."""

    network: nn.Module
    config: LearnerConfig
    number: int
    site: str
    train: Sequence[Prepared]
    validation: Sequence[Prepared]
    replay: Sequence[Sequence[Prepared] | Rows]  # exemplars, site by site; rows where another hospital has them
    moments: dict[str, Tensor] | None = None  # the optimiser's, where it is kept between rounds
    memory: dict[str, Tensor] | None = None  # the method's state at the end of the round before
    earlier: int = 0  # number of rounds that led to this one
    answering: Answering = this_process
    styles: Styles | None = None  # amplitudes of earlier sites
    merging: Merging | None = None  # with the weights that the round began with

    def __post_init__(self) -> None:
        config = self.config
        self.method = config.recipe().method
        self.oracle = self.answering(self.network, config)
        self.opt = Optimiser(self.oracle.theta, config.optimiser)
        if self.moments:
            self.opt.load(self.moments)
        self._remember(self.memory or {})
        self.incoming = Slices(self.train, config.preparation)
        self.previous = [s if isinstance(s, Rows) else Slices(s, config.preparation) for s in self.replay]
        self.progress = Progress()
        is_here = all(isinstance(site, Slices) for site in self.previous)
        prepares = is_here and pays(self.oracle.theta.device)
        self._ahead = Ahead(self._batches, config.iterations) if prepares else None
        self._before = {name: tensor.clone() for name, tensor in self._moving().items()} if self.merging else {}

    def run(self, save: Callable[[], None], seconds: float = 60.0, on_step: OnStep | None = None) -> None:
        """Take all remaining iterations; call `save` at intervals, at the end, and when `on_step` raises Stopped."""
        last = started = time.monotonic()
        spent = self.progress.seconds
        self._begin()

        def save_all() -> None:
            self.progress.seconds = spent + time.monotonic() - started
            save()

        for iteration in range(self.progress.iteration, self.config.iterations):
            try:
                step = self.step(iteration)
            except (Unanswered, Stopped):
                save_all()
                raise
            self.progress.iteration = iteration + 1
            self._average()
            if (iteration + 1) % self.config.validate_every == 0 or iteration + 1 == self.config.iterations:
                self._validate()
            if on_step:
                try:
                    on_step(iteration + 1, step)
                except Stopped:
                    save_all()
                    raise
            if time.monotonic() - last >= seconds:
                save_all()
                last = time.monotonic()
        if self._ahead is not None:
            self._ahead.close()
        looks = self.method.remembers() and not self.progress.ended
        if looks or (self.merging and not self.progress.selected):
            save_all()  # so that the training is not repeated if the process is killed during the pass over the site
        self._finish()
        if looks:
            self._end()
        save_all()

    def _begin(self) -> None:
        """Call the method's `begin_round`; refuse a method that would do nothing but fine-tune."""
        if not self.progress.begun:
            self._look(self.method.begin_round, number=0)
            self.progress.begun = True
        if self.progress.ended:  # nothing is left to do, and `end_round` may have cleared the state
            return
        if self.earlier and not self.method.has_something_to_do(self._batches(0)):
            left = "no exemplars are kept" if self.method.keeps != "nothing" else "the round before left it no state"
            raise SmgError(
                f"round {self.number}, site {self.site}: method {self.method.name} would only fine-tune, since {left}; "
                "go on with the method of the rounds before, or fine-tune by name: method finetune"
            )

    def _end(self) -> None:
        self._look(self.method.end_round, number=self.config.iterations)
        for name, tensor in self.method.state.items():
            if tensor.isnan().any():
                raise self._diverged(self.progress.iteration, f"state {name} of method {self.method.name} is nan")
        self.progress.ended = True

    def _look(self, hook: Callable[[Tensor, Gradient, Iteration], None], number: int) -> None:
        """Call a method's `begin_round` or `end_round`, with slices that are not augmented."""
        if not self.method.remembers():
            return
        batches = self.plain_batches(number)
        self.oracle.at(self.config.seed, self.number, number, scale=self.opt.scale, report=False)
        hook(self.oracle.theta.clone(), self.oracle, batches)  # a copy: a pass at Θ updates batch norm's statistics
        keep_apart(self.method, self.oracle.theta)

    def step(self, iteration: int) -> Step:
        """Take one iteration."""
        self.opt.at(iteration, self.config.iterations)
        try:
            step = self._taken(iteration)
        except FloatingPointError as error:
            raise self._diverged(iteration + 1, str(error)) from None
        if iteration % self.config.log_every == 0 or iteration + 1 == self.config.iterations:
            self.progress.log.append(logged(iteration + 1, step))
        return step

    def plain_batches(self, iteration: int) -> Iteration:
        """Return an iteration's batches with original slices: neither augmented nor in another site's style."""
        return replace(self._batches(iteration), augmentation=Augmentation(), styles=None)

    def _taken(self, iteration: int) -> Step:
        """Take one iteration; start it again whenever the source of gradients raises AskAgain."""
        far = any(isinstance(site, Rows) for site in self.previous)
        before = self.opt.state() if far else {}  # a method may take several inner steps before it moves Θ
        while True:
            try:
                if self._ahead is None:
                    return take_step(self.method, self.oracle, self.opt, self._batches(iteration))
                batches = self._ahead.take(iteration)
                step = take_step(self.method, self.oracle, self.opt, batches)
                self._ahead.note(batches)
                return step
            except (AskAgain, Unanswered, Stopped) as error:
                self.opt.load(before)
                if not isinstance(error, AskAgain):
                    raise

    def _batches(self, iteration: int) -> Iteration:
        return Iteration(
            incoming_site=self.incoming,
            previous_sites=self.previous,
            size=self.config.batch,
            seed=self.config.seed,
            round=self.number,
            number=iteration,
            augmentation=self.config.augment,
            replay_size=self.config.replay.batch,
            window=self.config.preparation.window,
            site=self.site,
            earlier=self.earlier,
            styles=self.styles,
        )

    def _average(self) -> None:
        """Update Θ̄, the mean of Θ and of batch norm's statistics over the second half of the round."""
        n = self.progress.iteration - self.config.iterations // 2
        if self.config.select != "average" or n < 1:
            return
        for name, now in self._moving().items():
            mean = self.progress.mean.setdefault(name, torch.zeros_like(now))
            mean += (now - mean) / n
            if self.progress.iteration == self.config.iterations:
                now.copy_(mean)

    def _moving(self) -> dict[str, Tensor]:
        """Return all numbers that training changes: Θ, and batch norm's statistics."""
        moving = {name: b for name, b in self.network.named_buffers() if b.is_floating_point()}
        return moving | {"all parameters": self.oracle.theta}  # no buffer can have this name

    def _validate(self) -> None:
        if not self.validation:
            return
        before = self.progress.best_dice
        options = self.config.preparation, self.config.largest_component
        try:
            rows = [prepared_dice(self.network, subject, *options) for subject in self.validation]
        except NotFinite:
            raise self._diverged(self.progress.iteration, "scores of validation subjects are nan") from None
        self.progress.curve.append(CurvePoint(iteration=self.progress.iteration, dsc=sum(rows) / len(rows)))
        if self.config.select == "best" and self.progress.curve[-1].dsc > before:
            self.progress.best = copied(self.network.state_dict())

    def _finish(self) -> None:
        """Load the weights that close the round; raise an error if any is NaN or infinite."""
        if not self.progress.selected:
            if self.progress.best:
                self.network.load_state_dict(self.progress.best)
            self._merge()
            self.progress.selected = True
        for name, tensor in self.network.state_dict().items():  # also statistics and means, which no step has checked
            if not tensor.isfinite().all():
                raise self._diverged(self.progress.iteration, f"{name} is {'nan' if tensor.isnan().any() else 'inf'}")

    def _merge(self) -> None:
        """Merge with the weights that the round began with; the first round only computes its importances."""
        if self.merging is None:
            return
        number = self.config.iterations
        self.oracle.at(self.config.seed, self.number, number, scale=self.opt.scale, report=False)
        found = self.merging.looked(self.oracle.theta.clone(), self.oracle, self.plain_batches(number))
        self.progress.merged = self.merging.summed(found)
        for name, now in self._moving().items() if self.earlier else ():
            share = self.merging.shares(found) if now is self.oracle.theta else self.merging.share
            now.copy_(merge(now, self._before[name], share))

    def _diverged(self, iteration: int, what: str) -> Diverged:
        return Diverged(
            f"round {self.number}, iteration {iteration}, site {self.site}: {what}; the model is as it was. "
            "A lower rate may help"
        )

    # --- a checkpoint -------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, moments, the best weights, the mean so far and the method's state, for a checkpoint."""
        tensors = {f"weights.{name}": t for name, t in self.network.state_dict().items()}
        tensors |= {f"moments.{name}": t for name, t in self.opt.state().items()}
        tensors |= {f"best.{name}": t for name, t in self.progress.best.items()}
        tensors |= {f"mean.{name}": t for name, t in self.progress.mean.items()}
        tensors |= {f"state.{name}": t for name, t in self.method.state.items()}
        tensors |= {f"merged.{name}": t for name, t in self.progress.merged.items()}
        return copied(tensors)

    def facts(self, key: dict[str, str], parent: int, versions: PackageVersions) -> CheckpointFacts:
        """Return the round's progress for a checkpoint; `key` has the hashes of its inputs."""
        return CheckpointFacts(
            site=self.site,
            round=self.number,
            iteration=self.progress.iteration,
            iterations=self.config.iterations,
            parent=parent,
            versions=versions,
            key=key,
            curve=tuple(self.progress.curve),
            log=tuple(self.progress.log),
            begun=self.progress.begun,
            selected=self.progress.selected,
            ended=self.progress.ended,
            seconds=self.progress.seconds,
        )

    def load(self, tensors: dict[str, Tensor], about: CheckpointFacts) -> None:
        """Resume from a checkpoint."""
        self.network.load_state_dict(_under("weights.", tensors))
        self.opt.load(_under("moments.", tensors))
        mean = {name: t.to(self.oracle.theta.device) for name, t in _under("mean.", tensors).items()}
        self.progress = Progress(
            about.iteration,
            list(about.curve),
            list(about.log),
            _under("best.", tensors),
            mean,
            _under("merged.", tensors),
            begun=about.begun,
            selected=about.selected,  # false in checkpoints from before merging: the weights are selected again
            ended=about.ended,
            seconds=about.seconds,
        )
        self._remember(_under("state.", tensors))

    def _remember(self, state: dict[str, Tensor]) -> None:
        self.method.state.clear()
        self.method.state.update({name: t.clone().to(self.oracle.theta.device) for name, t in state.items()})


def logged(iteration: int, step: Step) -> LoggedStep:
    """Return the measurements of an iteration, for a record."""
    return LoggedStep(
        iteration=iteration, losses=step.losses, norms=step.norms, cosines=step.cosines, shifted=step.shifted
    )


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def device_of_choice() -> torch.device:
    """Return a GPU if there is one, or else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
