"""Learning curves and searches that cannot be planned or continued."""

from __future__ import annotations

from comparison_walks import PLAN
from data_walks import REMOVE
from prepared import OF_PLANS, OF_TEXT, train
from training_walks import changed, instead, without

CURVE = f"UNTIL=plan curve --seeds 3 --sizes 12,24 --output_dir p {OF_PLANS}"

SEARCH = f"UNTIL=plan search --time_budget 10h --output_dir p {OF_PLANS}"

WALKS = {
    "sizes that are too large": changed(
        CURVE.replace("12,24", "12,99"), instead("12,99", "12,24", "at least two sizes from")
    ),
    "a curve in a comparison": changed(
        f"{PLAN} ; {CURVE}",
        instead(f"{PLAN} ; {CURVE}", CURVE.replace("dir p", "dir p2"), "Choose another folder"),
    ),
    "another curve": changed(
        f"{CURVE} ; {CURVE.replace('12,24', '6,24')}",
        instead(
            f"{CURVE} ; {CURVE.replace('12,24', '6,24')}",
            CURVE.replace("--sizes 12,24 ", ""),
            "Remove the flag to continue it",
        ),
        instead(
            f"{CURVE} ; {CURVE.replace('12,24', '6,24')}",
            CURVE.replace("dir p", "dir p2"),
            "choose another --output_dir",
        ),
    ),
    "a short search": changed(
        SEARCH.replace("10h", "1s"),
        instead("1s", "10h", "Raise the budget"),
        instead(SEARCH.replace("10h", "1s"), train(), "use the defaults with ampft train"),
    ),
    "a search without test rows": changed(
        SEARCH.replace("--test_file u.csv", "--test_fraction 0"),
        instead("--test_fraction 0", "--test_file u.csv", "Pass files"),
    ),
    "a search of numbers in folds": changed(
        SEARCH.replace("10h", "10h --folds 3").replace(
            OF_TEXT, "--train_file pairs.csv --text_column_names a --task regression"
            " --label_column_name score"
        ),
        without("--folds 3", REMOVE),
    ),
    "a learning rate of nothing": changed(
        SEARCH.replace("1e-3", "0"),
        instead("10h", "10h --learning_rates 1e-4,1e-3", "Pass --learning_rates"),
    ),
    "another search": changed(
        f"{SEARCH} ; {SEARCH.replace('10h', '10h --seeds 4')}",
        instead(
            f"{SEARCH} ; {SEARCH.replace('10h', '10h --seeds 4')}",
            SEARCH.replace("dir p", "dir p2"),
            "Choose another folder",
        ),
        instead(
            f"{SEARCH} ; {SEARCH.replace('10h', '10h --seeds 4')}",
            SEARCH,
            "use the settings of that search to continue it",
        ),
    ),
    "a damaged search": changed(
        SEARCH,
        instead("dir p", "dir p2", "Choose another --output_dir"),
        files={"p/search.json": "["},
    ),
    "a search that has not finished": changed(
        f"{SEARCH} ; report p", instead(f"{SEARCH} ; report p", SEARCH, "Repeat its command")
    ),
}  # fmt: skip
