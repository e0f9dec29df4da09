"""Decide in which frames of a visit the face is recognised. In the other frames it is only tracked.

The first `needed` good frames are recognised at once, without waiting. A frame that recognised a person is confirmed by
the next one. All other looks are spread over the patience, so that a person who takes off sunglasses is still seen; the last
`needed - 1` looks are kept to confirm. A clearly better frame is recognised before its time.
"""

from edge.decision.visit import Visit, VisitRules

BETTER = 1.5  # a frame is clearly better than all recognised ones if its grade is this many times higher


def wants_look(visit: Visit, captured: float, grade: float, rules: VisitRules) -> bool:
    """Whether an undecided visit without a challenge should be recognised in the frame of this time and grade."""
    left, since = rules.max_looks - visit.looks, captured - visit.looked
    if left <= 0 or since < rules.gap_seconds:
        return False
    if visit.looks < rules.needed or (visit.recent and visit.recent[-1].label is not None):
        return True
    patience_end = min(visit.usable_since, visit.looked) + rules.patience_seconds
    spare = left - (rules.needed - 1)
    is_better = spare > 0 and grade > BETTER * visit.grade
    return is_better or since >= max(patience_end - visit.looked, 0.0) / max(spare, 1)
