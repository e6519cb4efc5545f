"""Names of the warnings of a run, in its record."""

from __future__ import annotations

EXPLODED = "exploded"
NEAR_CHANCE = "near_chance"
ONE_PREDICTION = "one_prediction"
NEVER_PREDICTED = "never_predicted"
NOT_BETTER = "not_better_than_chance"
NEVER_MOVED = "validation_never_moved"
SKIPPED_NONFINITE = "skipped_nonfinite"
FALLING_SCALE = "falling_loss_scale"
PARTLY_COMPILED = "compilation"

# Warnings after which a comparison or a referee cannot judge a model by its training. A rare class
# that is never predicted is none of them, because the model may be good at all other rows; nor are
# those that speak of something else, such as a client that gives other answers.
NOT_TRAINED_WELL = (
    *(EXPLODED, NEAR_CHANCE, ONE_PREDICTION, NOT_BETTER, NEVER_MOVED),
    *(SKIPPED_NONFINITE, FALLING_SCALE),
)
