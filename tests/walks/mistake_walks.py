"""Code of Python in which a value has a wrong type or shape."""

from __future__ import annotations

from code_walks import FINETUNE, GOOD, LOOP, SETTING, finetuned, loop
from data_walks import Remedy, Walk
from library_walks import code
from training_walks import instead

GRADIENT = """
accelerator = ampft.make_accelerator("fp32")
examples = ampft.TensorExamples({"x": torch.randn(8, 4), "labels": torch.arange(8) % 2})
batches = ampft.StepBatches.for_process(accelerator, examples, batch_size=4)
"""
STEP = "training.step(summed)\n"
FRAME = "pd.DataFrame({'x': [0.5] * 12, 'y': [0, 1] * 6})"


def after_step(call: str, *remedies: Remedy) -> Walk:
    """Return the walk of an own loop that calls something after its last step."""
    return loop(STEP, f"{STEP}    training.{call}\n", *remedies)


OF_OWN_LOOPS = {
    "a model that is a class": loop(
        "ampft.Training(model,",
        "ampft.Training(torch.nn.Linear,",
        instead("Training(torch.nn.Linear,", "Training(model,", "Pass a torch.nn.Module"),
        instead(
            "Training(torch.nn.Linear,",
            "Training({'model': model},",
            "or several by name in a dictionary",
        ),
    ),
    "an optimizer that is a list": loop(
        "Training(model, optimizer,",
        "Training(model, [optimizer],",
        instead("[optimizer],", "optimizer,", "Pass an optimizer of torch.optim"),
    ),
    "a table of pandas": code(
        LOOP.replace(GOOD, FRAME).replace(
            "x, y = batch", "x, y = batch['x'].float()[:, None].repeat(1, 4), batch['y']"
        ),
        instead(
            FRAME,
            f"__import__('datasets').Dataset.from_pandas({FRAME})",
            "Pass datasets.Dataset.from_pandas(frame)",
        ),
        instead(FRAME, f"{FRAME}.to_dict('records')", "or frame.to_dict('records')"),
    ),
    "a collate function that is none": loop(
        SETTING,
        "epochs=1, collate='pad'",
        instead("'pad'", "torch.utils.data.default_collate", "Pass a function that takes examples"),
    ),
    "objects in a list": loop(
        SETTING,
        "epochs=1, checkpointed=[3]",
        instead(
            "[3]", "{'s': torch.optim.lr_scheduler.StepLR(optimizer, 1)}", "Pass objects by name"
        ),
    ),
    "hyperparameters in a list": loop(
        SETTING,
        "epochs=1, hyperparameters=[0.2]",
        instead("[0.2]", "{'margin': 0.2}", 'such as {"margin": 0.2}'),
    ),
    "a hyperparameter that is an object": loop(
        SETTING,
        "epochs=1, hyperparameters={'loss': object()}",
        instead("object()", "'focal'", "Pass numbers, texts, and lists of them"),
    ),
    "a seed that is a text": loop(
        SETTING, "epochs=1, seed='a'", instead("'a'", "3", "Pass a whole number of at least 0")
    ),
    "a norm that is a text": loop(
        SETTING, "epochs=1, max_grad_norm='1'", instead("'1'", "1.0", "Pass a number")
    ),
    "results that are an array": after_step(
        "finish(np.zeros(3))",
        instead(
            "np.zeros(3)",
            "ampft.Predictions.from_logits(torch.randn(6, 2), torch.arange(6) % 2, ['a', 'b'])",
            "Pass ampft.Predictions.from_logits(logits, labels, label_names)",
        ),
        instead("np.zeros(3)", "mine=0.5", "or metrics by name"),
    ),
    "a loss that is a number": loop(
        STEP,
        "training.step(0.5)\n",
        instead("step(0.5)", "step(summed)", "Pass a function that takes a batch"),
    ),
    "a loss without a gradient": loop(
        'reduction="sum")\n',
        'reduction="sum").detach()\n',
        instead(".detach()", "", "without .detach()"),
    ),
    "a loss with a weight of several numbers": loop(
        'reduction="sum")\n',
        'reduction="sum"), torch.ones(2)\n',
        instead("torch.ones(2)", "len(y)", "its weight, a number each"),
    ),
    "a loss with the weight 0": loop(
        'reduction="sum")\n',
        'reduction="sum"), 0\n',
        instead("), 0\n", "), len(y)\n", "Return what the sum of a batch is divided by"),
    ),
    "a loss whose weight is not finite": loop(
        'reduction="sum")\n',
        'reduction="sum"), float("nan")\n',
        instead('float("nan")', "len(y)", "Return what the sum of a batch is divided by"),
    ),
    "a step without a batch": loop(
        "    for step_batch in training:\n        training.step(summed)",
        "    training.step(summed)",
        instead(
            "    training.step(summed)",
            "    for step_batch in training:\n        training.step(summed)",
            "Call it in a loop such as `for step_batch in training:`",
        ),
    ),
    "a loop that was not entered": loop(
        "with training:\n    for",
        "if training:\n    for",
        instead("if training:", "with training:", "Put the loop inside `with training:`"),
    ),
    "a validation without metrics": after_step(
        "validated()", instead("validated()", "validated(accuracy=0.9)", "such as accuracy=0.9")
    ),
    "a metric that is a text": after_step(
        "validated(accuracy='good')", instead("'good'", "0.9", "Pass a number")
    ),
}
OF_GRADIENTS = {
    "tensors of several lengths": code(
        GRADIENT.replace("arange(8)", "arange(7)") + "len(batches)\n",
        instead("arange(7)", "arange(8)", "Pass tensors with one row for each example"),
    )
}
OF_TABLES_IN_MEMORY = {
    "half a character": finetuned(
        "finetune(frame,",
        "finetune([('\\ud800 a', 'a'), *rows],",
        instead("\\ud800 a", "w1 a", "Remove it"),
    ),
    "a table without rows": finetuned(
        "finetune(frame,", "finetune(frame[:0],", instead("frame[:0]", "frame", "Pass at least one")
    ),
    "two columns of one name": finetuned(
        "finetune(frame,",
        "finetune(frame.assign(x='a').set_axis(['text', 'label', 'label'], axis=1),",
        instead("'label', 'label'", "'label', 'other'", "Rename one of them"),
    ),
    "a model that is an object": Walk(
        {},
        FINETUNE.replace('"model"', 'transformers.AutoModel.from_pretrained("model")'),
        (
            instead(
                'transformers.AutoModel.from_pretrained("model")',
                '"model"',
                "pass its folder as model_name_or_path",
            ),
        ),
    ),
}
PREDICTED = """
answers = ampft.FinishedRun("run").predict(["w1"], decimals=-1)
"""
OF_ANSWERS = {
    "decimals below 0": code(PREDICTED, instead("-1", "0", "it must be at least 0")),
    "rows that are a number": code(
        PREDICTED.replace('["w1"], decimals=-1', "5"), instead("5", '["w1"]', "Pass a list of rows")
    ),
}
WALKS = {**OF_OWN_LOOPS, **OF_GRADIENTS, **OF_TABLES_IN_MEMORY, **OF_ANSWERS}
