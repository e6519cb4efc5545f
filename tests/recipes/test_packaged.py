"""`ampft train` and `ampft compare --modes`: the recipes, packaged."""

from __future__ import annotations

import ast
import json

import pytest
from running import BIN, REPOSITORY, call_here, succeeded, text_settings

from ampft import cli

AMPFT = BIN / "ampft"
PACKAGED = {
    "classify.py": ("train", "ampft/runs/train.py"),
    "compare_precision.py": ("compare", "ampft/comparison/execution/train_and_compare.py"),
    "compare.py": ("compare", "ampft/comparison/execution/train_and_compare.py"),
}
# Calls that a recipe leaves out, because its flags cannot ask for them.
LEFT_OUT = {
    "compare_precision.py": ("missing_for_selection", "select_arm"),
    "compare.py": ("measure_yardstick",),
}


def loop(path: str, name: str, left_out: tuple[str, ...] = ()) -> list[str]:
    """The statements of a function that hold its loop, without `ampft.` and annotations."""
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    (function,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    for block in [n for n in ast.walk(function) if isinstance(n, ast.With)]:
        kept = [s for s in block.body if not any(word in ast.unparse(s) for word in left_out)]
        assert len(kept) == len(block.body) - len(left_out)
        block.body = kept
    return [ast.unparse(WithoutPrefix().visit(statement)) for statement in function.body]


class WithoutPrefix(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        is_public = isinstance(node.value, ast.Name) and node.value.id == "ampft"
        return ast.Name(node.attr) if is_public else node


@pytest.mark.parametrize("recipe", PACKAGED)
def test_the_packaged_loop_is_the_loop_of_the_recipe(recipe):
    name, packaged = PACKAGED[recipe]
    # The docstring and the call that prepares differ, and the packaged function returns an object.
    shown = loop(f"recipes/{recipe}", name)[2:]
    used = loop(packaged, name, LEFT_OUT.get(recipe, ()))[2:-1]
    shown = [line.replace("(command, folder, plan, CLASSIFY)", "(...)") for line in shown]
    used = [line.replace("(command, folder, plan)", "(...)") for line in used]
    assert len(shown[-1]) > 300
    assert used == shown, (
        f"Make the same change in recipes/{recipe} and in {packaged}: copy the statements of "
        f"`{name}`, without `ampft.`, and import the names."
    )


@pytest.mark.slow
def test_ampft_train_is_the_recipe(files, tiny_model, tmp_path, capsys):
    short = ["--max_train_steps", "3", "--mixed_precision", "bf16"]
    runs = {}
    for name, words in {"recipe": ["recipes/classify.py"], "ampft": [AMPFT, "train"]}.items():
        settings = text_settings(files, tiny_model, tmp_path / name)
        done = succeeded(call_here(*words, *settings, *short))
        record = json.loads((tmp_path / name / "run.json").read_text())
        runs[name] = record, done.stdout.splitlines()
    (expected, shown), (record, printed) = runs.values()
    assert record["metrics"] == expected["metrics"]
    assert record["example_ids_sha256"] == expected["example_ids_sha256"]
    assert record["command"][:2] == ["ampft", "train"]
    assert printed[-1] == f"next       ampft predict --model {tmp_path / 'ampft'} FILE"
    assert printed[-2].startswith("result     ")
    assert shown[-1].startswith("result     ")


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["train", "--learning_rat", "1"], "unknown flag --learning_rat"),
        (["train", "--learning_rat", "1"], "See ampft train --help."),
        (["train", "runs"], "every setting is a flag."),
        (["compare", "--modes", "fp31"], "--modes: received 'fp31'"),
        (
            ["compare", "--modes=bf16", "--learning_rate", "1"],
            "ampft compare --modes=bf16 -- --learning_rate 1",
        ),
        (["compare", "--seeds", "2"], "at least 3"),
        (["compare", "--", "--seeds", "3"], "Write: ampft compare --seeds 3 --"),
        (["compare"], "RUN is missing"),
        (["train", "--model", "x"], "unknown flag --model. Use --model_name_or_path."),
        (["train", "--resume"], "unknown flag --resume. Use --resume_from_checkpoint."),
        (["train", "--mixed_precision", "float16"], "Did you mean 'fp16'? Choose from no, fp32"),
        (["compare", "--modes", "bfloat16"], "is not a precision. Did you mean 'bf16'? Choose"),
        (["finetune"], "Did you mean 'train'? See ampft --help"),
        (["pedict"], "Did you mean 'predict'?"),
        (
            ["predict", "--model", "x", "--output_fil", "y"],
            "Did you mean '--output_file'? See ampft predict --help.",
        ),
    ],
)
def test_refused(words, match, capsys):
    assert cli.main(words) == 2
    assert match in capsys.readouterr().err


def test_the_help(capsys):
    for words, usage in {
        ("train", "--help"): "usage: ampft train [--flag value ...]",
        (
            "compare",
            "--modes",
            "bf16",
            "--help",
        ): "usage: ampft compare [RUN ...] [--flag value ...] [-- settings",
        ("compare", "--help"): "usage: ampft compare [RUN ...] [--flag value ...] [-- settings",
    }.items():
        with pytest.raises(SystemExit, match="0"):
            cli.main(words)
        text = capsys.readouterr().out
        assert text.startswith(usage)
        assert "classify.py" not in text
