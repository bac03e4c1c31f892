"""The rule by which a claim is decided, and the power of a comparison. Fixed before any run of `prostate` was made.

One thing was changed later, on 2026-11-18, with 45 of its first 64 runs made: an interval is computed from the variance
of its own comparison alone. Before, that was pooled with the variance of all methods with replay. In a simulation with
4 seeds, as that of tests/experiments/test_evidence.py, pooled intervals covered the truth in 86 to 89 of 100 cases
where the judged method scattered twice or three times as much as the others, as SGA(+c) did in the runs. Most intervals
became wider.

The number of seeds was changed, too, on 2026-11-19, when the four that were planned first had been published: to ten,
since by the power that these four show more are needed. Verdicts of more seeds replace those of fewer, whatever they
say. That a decision is wrong by chance in 5 of 100 cases holds for one look, not for each of several.

And on the same day, with five seeds published, two faults of the intervals were corrected, both of which made them
too narrow: patients that only one seed tests gave degrees of freedom to what seeds have in common, and adding that
part could make an interval narrower than that of the seeds alone. No decision changed by it.

A claim is one number, above zero if the paper is right: the mean of all its comparisons over the streams it is about,
none left out, in points of DSC, with a 95 % interval over seeds and patients (smg.report.paired). The smallest
difference that matters to a user is set to

    d = 1.5 points of DSC   (0.3 mm of ASD)

In this order, the claim

    holds                        if low > 0
    does not hold                if high < 0
    is smaller than d            if high < d: it may be true, but by less than anybody would choose a method for
    is smaller than the paper's  if high < the paper's value, whose own error is not known
    is undecided                 otherwise, and always with fewer than SEEDS seeds

A claim that holds is also compared with d and with the paper's value. A claim is about one direction, so only the upper
end of its interval is compared with d: an interval from -4 to +1 excludes an advantage of 1.5, too. Claims are decided
by DSC; the same table by ASD is shown beside it and decides nothing. Each interval covers its truth in 95 of 100 cases,
so of 24 claims about one would be decided wrongly by chance; nothing is corrected for that.

Beside what is undecided stands the smallest difference that the comparison would have found with a probability of 80 %:
with standard error e and f degrees of freedom a true difference δ is found with the probability

    P(|T| > t(0.975; f)),   T noncentral t with f degrees of freedom and noncentrality δ / e
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, norm, t

from smg.evaluation.metrics import COMPARED
from smg.report.paired import LEVEL, Estimate

SEEDS = 3  # with fewer there is no verdict
POWER = 0.8
MINIMAL = {"dsc": 1.5, "asd": 0.3}  # in points, in mm
QUANTILES = (np.arange(500) + 0.5) / 500
HOLDS, REFUTED, SMALL, SMALLER, UNDECIDED = "holds", "does not hold", "small", "smaller", "undecided"
OUTCOMES = {  # in a count
    HOLDS: "hold",
    REFUTED: "do not hold",
    SMALL: f"smaller than {MINIMAL['dsc']:g}",
    SMALLER: "smaller than the paper's",
    UNDECIDED: "undecided",
}


@dataclass(frozen=True)
class Found:
    """A claim's number with its interval, and the paper's value for it."""

    estimate: Estimate
    papers: float | None
    seeds: int
    metric: str = "dsc"

    @property
    def mean(self) -> float:
        return self.estimate.mean

    @property
    def low(self) -> float:
        return self.estimate.low

    @property
    def high(self) -> float:
        return self.estimate.high

    @property
    def outcome(self) -> str:
        """The decision by the rule in the module's first lines."""
        if self.seeds < SEEDS:
            return UNDECIDED
        if self.low > 0 or self.high < 0:
            return HOLDS if self.low > 0 else REFUTED
        if self.high < MINIMAL[self.metric]:
            return SMALL
        return SMALLER if self.is_smaller_than_the_papers else UNDECIDED

    @property
    def is_smaller_than_the_papers(self) -> bool:
        """Return whether the interval excludes the paper's value from above."""
        return self.papers is not None and self.high < self.papers

    @property
    def detectable(self) -> float:
        """Return the smallest difference that would have been found with 80 % probability."""
        return self.estimate.error * noncentrality(self.estimate.freedom, POWER)

    @property
    def verdict(self) -> str:
        """The decision in words."""
        if self.seeds < SEEDS:
            return f"{self.seeds} seed{'s' * (self.seeds > 1)} only"
        digits, least = COMPARED[self.metric].digits, f"{MINIMAL[self.metric]:g}"
        theirs = "" if self.papers is None else f"smaller than the paper's {self.papers:.{digits}f}"
        if self.outcome == UNDECIDED:
            return f"undecided ({self.detectable:.{digits}f} detectable)"
        if self.outcome in (SMALL, SMALLER):
            return f"**smaller than {least}**" if self.outcome == SMALL else f"**{theirs}**"
        more = [f"by less than {least}"] * (self.outcome == HOLDS and self.high < MINIMAL[self.metric])
        more += [theirs] * (self.outcome == HOLDS and self.is_smaller_than_the_papers)
        return ", ".join([f"**{self.outcome}**", *more])

    @property
    def short(self) -> str:
        """The decision in a word or two, without numbers that stand elsewhere."""
        said = {SMALL: f"smaller than {MINIMAL[self.metric]:g}", SMALLER: "smaller than the paper's"}
        return said.get(self.outcome, self.outcome)

    def text(self, more: int = 0) -> str:
        """Return the mean and the interval; `more` is how many further digits they have."""
        digits = COMPARED[self.metric].digits + more
        return f"{self.mean:+.{digits}f} [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"


def power_of(difference: float, error: float, freedom: float) -> float:
    """Return the probability that the 95 % interval of a comparison excludes zero, on the side of the truth or not.

    T is a normal deviate over an estimated standard deviation. The probability is averaged over the quantiles of the
    latter, since scipy's noncentral t returns NaN in places.
    """
    if not error:
        return float(difference != 0)
    bound, centre = t.ppf(1 - LEVEL / 2, freedom), difference / error
    spread = np.sqrt(chi2.ppf(QUANTILES, freedom) / freedom)
    return float(np.mean(norm.sf(bound * spread - centre) + norm.cdf(-bound * spread - centre)))


def noncentrality(freedom: float, power: float) -> float:
    """Return the difference, in standard errors, that is found with the given probability."""
    high = 1.0
    while power_of(high, 1.0, freedom) < power:
        high *= 2
    return float(brentq(lambda difference: power_of(difference, 1.0, freedom) - power, 0.0, high))
