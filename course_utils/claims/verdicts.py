"""What a measurement can say about a sentence."""

from __future__ import annotations

TRUE = "true"
CAVEAT = "caveat"  # true under a condition, which the correction states
OUTDATED = "outdated"  # was true in an earlier release, which the correction names
FALSE = "false"
OPINION = "opinion"  # a recommendation that no measurement decides
NEEDS_CUDA = "needs-cuda"  # can't be measured on this machine
ERROR = "error"  # the measurement itself failed; never what a rule says

VERDICTS = (TRUE, CAVEAT, OUTDATED, FALSE, OPINION, NEEDS_CUDA)

MEANING = {
    TRUE: "true, as it stands",
    CAVEAT: "true under a condition",
    OUTDATED: "true once, not any more",
    FALSE: "false",
    OPINION: "advice that no measurement decides",
    NEEDS_CUDA: "not measurable here, it needs CUDA",
    ERROR: "the measurement failed",
}
