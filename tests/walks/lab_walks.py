"""Command lines that a parser refuses, and what its message advises."""

from __future__ import annotations

from data_walks import REMOVE, Remedy, Walk
from training_walks import changed, instead, without

TWO = "--arm 'a: --learning_rate 1e-4' --arm 'b: --learning_rate 1e-3' -- --train_file train.csv"


def arms(first: str, *remedies: Remedy, then: str = "--arm 'b: --learning_rate 1e-3'") -> Walk:
    """Return the walk of a comparison with a wrong arm."""
    return changed(f"--arm {first} {then} -- --train_file train.csv", *remedies)


# Read by the parser of a comparison: nothing is trained.
OF_ARMS = {
    "an arm alone": arms(
        "'a: --learning_rate 1e-4'",
        instead(
            "  -- --", " --arm 'b: --learning_rate 1e-3' -- --", "a comparison needs at least two"
        ),
        then="",
    ),
    "arms of one name": arms(
        "'b: --learning_rate 1e-4'",
        instead("'b: --learning_rate 1e-4'", "'a: --learning_rate 1e-4'", "Give each its own name"),
    ),
    "a name with a dash": arms(
        "'-a: --learning_rate 1e-4'", instead("'-a:", "'a:", "Begin with a name")
    ),
    "the name of the placebo": arms(
        "'placebo: --learning_rate 1e-4'", instead("'placebo:", "'a:", "Choose another name")
    ),
    "the name of a precision": arms(
        "'bf16: --learning_rate 1e-4'",
        instead("'bf16:", "'a:", "Choose another name"),
        instead("1e-4'", "1e-4 --mixed_precision bf16'", "add --mixed_precision bf16"),
    ),
    "flags that cannot be split": arms(
        '"a: --train_file \'x"',
        instead('"a: --train_file \'x"', "'a: --learning_rate 1e-4'", "the flags cannot be split"),
    ),
    "equal arms": arms(
        "'a: --learning_rate 1e-3'",
        instead("'a: --learning_rate 1e-3'", "'a: --learning_rate 1e-4'", "Change a setting"),
    ),
    "arms of other labels": arms(
        "'a: --task multi-label'",
        instead(
            "'a: --task multi-label'",
            "'a: --learning_rate 1e-4'",
            "Compare arms with the same kind of labels",
        ),
    ),
    "a choice between two": changed(
        TWO.replace(" --  ", " -- ").replace(" -- --", " --select validation -- --"),
        without("--select validation", REMOVE),
        instead("--select", "--arm 'c: --learning_rate 1e-2' --select", "or add an arm"),
    ),
    "a token in an arm": arms(
        "'a: --hub_token hf_abcdefghijklmnopqrstuvwxyz012345'",
        instead(
            "'a: --hub_token hf_abcdefghijklmnopqrstuvwxyz012345'",
            "'a: --learning_rate 1e-4'",
            "in the environment",
        ),
    ),
    "a wrong setting of an arm": arms(
        "'a: --learning_rat 1e-4'",
        instead("learning_rat ", "learning_rate ", "Did you mean '--learning_rate'"),
    ),
}
# Read by the parser of the command: nothing is trained.
OF_PARSERS = {
    "sizes": changed(
        "curve --sizes 9,x -- --train_file t.csv --test_file u.csv",
        instead("9,x", "100,200", "such as 100,200,400"),
    ),
    "seeds of a curve": changed(
        "curve --seeds 3,5 -- --train_file t.csv --validation_file v.csv --test_file u.csv",
        instead("3,5", "5", "Use a number"),
    ),
    "a curve of numbers": changed(
        "curve -- --train_file t.csv --task regression --test_file u.csv",
        without("--task regression", "Use a task with classes"),
    ),
    "a curve without a test file": changed(
        "curve -- --train_file t.csv", Remedy("Pass a file after ` -- `", add="--test_file u.csv")
    ),
    "rates": changed(
        "search --time_budget 1h --learning_rates 1e-3,0 -- --train_file t.csv",
        instead("1e-3,0", "1e-3,1e-4", "such as 1e-5,1e-4,1e-3"),
    ),
    "a format": changed(
        "export run --output_dir a", Remedy("See ampft export --help", add="--format onnx")
    ),
    "a yardstick on nodes": changed(
        "compare --modes fp32,bf16 --yardstick --engine ray -- --train_file t.csv",
        without("--yardstick", "Use ampft yardstick instead"),
        without("--engine ray", "on this machine"),
    ),
    "no configuration": changed(
        "compare --modes fp32,bf16 --config_file x.yaml -- --train_file t.csv",
        without("--config_file x.yaml", "does not exist"),
    ),
    "a resume check of nothing": changed(
        "resume-check", Remedy("or only the flags of ampft train", add="-- --max_train_steps 40")
    ),
    "a resume check of no file": changed(
        "resume-check -- nothing.py", instead("nothing.py", "t.py", "Pass a script after ` -- `")
    ),
}
OF_PARSERS = {
    name: Walk(
        {"t.py": "", "t.csv": "text,label\n", "u.csv": "text,label\n", "v.csv": "text,label\n"},
        walk.words,
        walk.remedies,
    )
    for name, walk in OF_PARSERS.items()
}
