"""Code of Python that ends in a message, and what the message advises."""

from __future__ import annotations

from data_walks import Files, Remedy, Walk
from training_walks import instead, without

# An own loop; walks replace its lines.
LOOP = """
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
other = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
examples = [(torch.randn(4), i % 2) for i in range(12)]
def summed(batch):
    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y, reduction="sum")
training = ampft.Training(model, optimizer, examples, output_dir="o", batch_size=4, epochs=1)
with training:
    for step_batch in training:
        training.step(summed)
"""


def loop(old: str, new: str, *remedies: Remedy) -> Walk:
    """Return the walk of an own loop with one line changed; remedies replace the new words."""
    assert old in LOOP, old
    return Walk({}, LOOP.replace(old, new), remedies)


SETTING = "epochs=1"
GOOD = "[(torch.randn(4), i % 2) for i in range(12)]"
OF_LOOPS = {
    "a stream": loop(
        GOOD,
        "iter([1, 2])",
        instead("iter([1, 2])", GOOD, "pass a list"),
        instead(
            "iter([1, 2])",
            f"torch.utils.data.DataLoader({GOOD}, batch_size=4)",
            "or a DataLoader of one",
        ),
    ),
    "no examples": loop(GOOD, "[]", instead("[]", GOOD, "Pass at least one example")),
    "weights of too few": loop(
        SETTING, "epochs=1, weights=[1.0]", instead("[1.0]", "[1.0] * 12", "Pass 12 finite numbers")
    ),
    "a sampler that leaves out": loop(
        "ampft.Training(model, optimizer, examples,",
        "ampft.Training(model, optimizer, torch.utils.data.DataLoader(examples, batch_size=4,"
        " sampler=torch.utils.data.SubsetRandomSampler(range(8))),",
        instead(
            "torch.utils.data.DataLoader(examples, batch_size=4,"
            " sampler=torch.utils.data.SubsetRandomSampler(range(8)))",
            "torch.utils.data.Subset(examples, range(8))",
            "torch.utils.data.Subset(data, indices)",
        ),
    ),
    "a loader with another size": loop(
        'ampft.Training(model, optimizer, examples, output_dir="o", batch_size=4,',
        "ampft.Training(model, optimizer, torch.utils.data.DataLoader(examples, batch_size=3),"
        ' output_dir="o",',
        instead(', output_dir="o"', ', output_dir="o", batch_size=3', "Pass batch_size=3"),
    ),
    "all of a batch left out": loop(
        SETTING,
        "epochs=1, batch_size_=0".replace(", batch_size_=0", ", drop_last=True"),
        Remedy("Pass drop_last=False", without="drop_last=True", add="drop_last=False"),
    ),
    "a mean": loop(
        'reduction="sum"',
        'reduction="mean"',
        instead('"mean"', '"sum"', 'Return the sum (reduction="sum")'),
        instead(SETTING, "epochs=1, check_loss=False", "check_loss=False"),
    ),
    "a sum in 16 bits": loop(
        'return torch.nn.functional.cross_entropy(model(x), y, reduction="sum")',
        'return torch.nn.functional.cross_entropy(model(x).bfloat16(), y, reduction="sum")',
        instead(".bfloat16()", ".float()", "with .float() before the sum"),
    ),
    "an optimizer of another model": loop(
        "SGD(model.parameters()",
        "SGD([*model.parameters(), *other.parameters()]",
        instead(
            "Training(model,", 'Training({"a": model, "b": other},', 'model={"name": module, ...}'
        ),
    ),
    "a parameter that nothing trains": loop(
        "SGD(model.parameters()",
        "SGD([model.weight]",
        instead("[model.weight]", "[model.weight, model.bias]", "Pass them to it"),
        instead(
            "training = ", "model.bias.requires_grad_(False)\ntraining = ", "requires_grad_(False)"
        ),
    ),
    "a setting as a hyperparameter": loop(
        SETTING,
        "hyperparameters={'epochs': 1}",
        instead("hyperparameters={'epochs': 1}", SETTING, "Pass it as one"),
    ),
    "what happens to a step that is not finite": loop(
        SETTING,
        "on_nonfinite='go'",
        instead("'go'", "'stop'", "Pass stop or skip"),
        instead("'go'", "'skip'", "Pass stop or skip"),
    ),
    "no folder": loop(
        'output_dir="o", ',
        "",
        instead("batch_size=4", 'output_dir="runs/mine", batch_size=4', "choose a folder"),
    ),
    "no whole number": loop(
        SETTING, "epochs=0", instead("epochs=0", SETTING, "Pass a whole number of at least 1")
    ),
    "a schedule that is none": loop(
        SETTING,
        "epochs=1, schedule=lambda o: 3",
        instead(
            "lambda o: 3",
            "lambda o: torch.optim.lr_scheduler.StepLR(o, 1)",
            "or a function that makes one",
        ),
        without(", schedule=lambda o: 3", "without schedule="),
    ),
    "a schedule by steps that follows a metric": loop(
        SETTING,
        "epochs=1, schedule=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),"
        " schedule_every='step'",
        without(", schedule_every='step'", "Leave it out"),
    ),
    "a schedule by a metric that follows none": loop(
        SETTING,
        "epochs=1, schedule=torch.optim.lr_scheduler.StepLR(optimizer, 1), schedule_every='metric'",
        instead("'metric'", "'step'", 'Pass "step" or "epoch"'),
        instead("'metric'", "'epoch'", 'Pass "step" or "epoch"'),
    ),
    "a schedule of an unclear length": loop(
        SETTING,
        "epochs=1, schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7)",
        instead(
            "optimizer, 7)", "optimizer, 7), schedule_every='step'", 'Pass schedule_every="step"'
        ),
        instead("optimizer, 7)", "optimizer, 7), schedule_every='epoch'", 'schedule_every="epoch"'),
    ),
    "a schedule in the wrong direction": loop(
        "training.step(summed)\n",
        "training.step(summed)\n    training.validated(accuracy=0.5)\n",
        instead(
            "(optimizer)",
            "(optimizer, mode='max'), overwrite_output_dir=True",
            "Pass the other mode",
        ),
    ),
    "a precision of an optimizer": loop(
        '(model(x), y, reduction="sum")\n',
        '(model(x).float(), y, reduction="sum")\n',
        instead("'bf16-true-kahan'", "'bf16-true'", "Use bf16-true"),
    ),
    "an update that is unknown": loop(
        "training.step(summed)",
        "training.step(summed, update='b')",
        without(", update='b'", "Leave it out"),
    ),
    "a metric that is missing": loop(
        "training.step(summed)\n",
        "training.step(summed)\n    training.validated(loss=1.0)\n",
        instead("loss=1.0", "loss=1.0, accuracy=0.5", "Pass accuracy=..."),
    ),
    "an average that is not validated": loop(
        "training.step(summed)\n",
        "training.step(summed)\n    training.validated(loss=1.0)\n",
        instead(
            "    training.validated",
            "    with training.evaluation(): training.validated",
            "with training.evaluation():",
        ),
    ),
    "an object without a state": loop(
        SETTING,
        "epochs=1, checkpointed={'a': 3}",
        instead("3}", "torch.optim.lr_scheduler.StepLR(optimizer, 1)}", "such as schedules"),
    ),
    "an object with tensors": loop(
        SETTING,
        "epochs=1, checkpointed={'a': other}",
        instead(
            "other}",
            "torch.optim.lr_scheduler.StepLR(optimizer, 1)}",
            "Pass objects such as schedules",
        ),
    ),
    "a metric twice": loop(
        "training.step(summed)\n",
        "training.step(summed)\n    training.finish(ampft.Predictions.from_logits(torch.randn(6,"
        " 2), torch.arange(6) % 2, label_names=['a', 'b']), accuracy=0.5)\n",
        without(", accuracy=0.5", "Leave it out"),
        instead("accuracy=0.5", "mine=0.5", "give yours another name"),
    ),
    "a step that is missing": loop(
        "training.step(summed)\n",
        "pass\n",
        instead(
            "        pass",
            "        training.step(lambda batch: 0 * summed(batch))",
            "return a loss of 0",
        ),
    ),
}
OF_LOOPS["a schedule in the wrong direction"] = Walk(
    {},
    OF_LOOPS["a schedule in the wrong direction"].words.replace(
        SETTING, "epochs=1, schedule=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)"
    ),
    (
        *OF_LOOPS["a schedule in the wrong direction"].remedies,
        (
            instead("accuracy=0.5", "accuracy=0.5, loss=1.0", "the metric that it follows")
            if False
            else instead(
                "epochs=1",
                "epochs=1, schedule_metric='accuracy', overwrite_output_dir=True",
                "schedule_metric=...",
            )
        ),
    ),
)
OF_LOOPS["a precision of an optimizer"] = Walk(
    {},
    OF_LOOPS["a precision of an optimizer"].words.replace(
        SETTING, "epochs=1, precision='bf16-true-kahan'"
    ),
    OF_LOOPS["a precision of an optimizer"].remedies,
)
OF_LOOPS["a metric that is missing"] = Walk(
    {},
    OF_LOOPS["a metric that is missing"].words.replace(
        SETTING, "epochs=1, metric_for_best_model='accuracy'"
    ),
    OF_LOOPS["a metric that is missing"].remedies,
)
OF_LOOPS["an average that is not validated"] = Walk(
    {},
    OF_LOOPS["an average that is not validated"].words.replace(SETTING, "epochs=1, ema_decay=0.9"),
    OF_LOOPS["an average that is not validated"].remedies,
)
OF_LOOPS["all of a batch left out"] = Walk(
    {},
    OF_LOOPS["all of a batch left out"].words.replace("batch_size=4", "batch_size=20"),
    (
        *OF_LOOPS["all of a batch left out"].remedies,
        instead("batch_size=20", "batch_size=4", "a smaller batch_size"),
    ),
)

FINETUNE = """
rows = [(f"w{i % 9} w{i % 3}", "ab"[i % 2]) for i in range(24)]
frame = pd.DataFrame(rows, columns=["text", "label"])
settings = dict(max_train_steps=2, use_cpu=True, cpu_threads=1, output_dir="o")
run = ampft.finetune(frame, model_name_or_path="model", **settings)
"""


def finetuned(old: str, new: str, *remedies: Remedy, files: Files | None = None) -> Walk:
    """Return the walk of a training from Python with one part changed."""
    assert old in FINETUNE, old
    return Walk(files or {}, FINETUNE.replace(old, new), remedies)


OF_FINETUNING = {
    "splits twice": finetuned(
        "finetune(frame,",
        "finetune(__import__('datasets').DatasetDict({'train':"
        " __import__('datasets').Dataset.from_pandas(frame)}), validation=frame,",
        without(" validation=frame,", "so remove validation"),
    ),
    "mixed types": finetuned(
        "finetune(frame,",
        "finetune(frame.assign(x=[1, 'a'] * 12),",
        instead("[1, 'a']", "['1', 'a']", "convert mixed ones, for example to strings"),
    ),
    "a path and a frame": finetuned(
        "finetune(frame,",
        "finetune(frame, test='u.csv',",
        instead("test='u.csv'", "test=pd.read_csv('u.csv')", "for example with pandas.read_csv"),
        instead("finetune(frame, ", "finetune('train.csv', ", "Pass paths for all splits"),
        files={
            "u.csv": "text,label\nw1,a\nw2,b\n",
            "train.csv": "text,label\n"
            + "".join(f"w{i} w{j},{'ab'[j % 2]}\n" for i in range(1, 7) for j in range(1, 7)),
        },
    ),
    "no training rows": finetuned(
        "finetune(frame,",
        "finetune(test=frame,",
        instead("test=frame", "frame, test=frame", "train is missing"),
    ),
    "a file and a frame": finetuned(
        "finetune(frame,",
        "finetune(frame, train_file='u.csv',",
        without(" train_file='u.csv',", "Remove one of them"),
    ),
    "a precision twice": finetuned(
        "output_dir",
        "precision='bf16', mixed_precision='bf16', output_dir",
        (
            without("precision='bf16', mixed", "Remove one of them")
            if False
            else instead(
                "precision='bf16', mixed_precision='bf16', ",
                "precision='bf16', ",
                "Remove one of them",
            )
        ),
        instead(
            "precision='bf16', mixed_precision='bf16', ",
            "mixed_precision='bf16', ",
            "Remove one of them",
        ),
    ),
    "a tracker that is a class": finetuned(
        "output_dir",
        "report_to=Tracker, output_dir",
        instead("report_to=Tracker", "report_to=Tracker()", "Pass an object of it"),
        files={},
    ),
    "a tracker that is none": finetuned(
        "output_dir",
        "report_to=3, output_dir",
        instead("=3", "='tensorboard'", "Pass names of trackers"),
    ),
    "an argument of the Trainer": finetuned(
        "finetune(frame,",
        "finetune(train_dataset=frame,",
        instead("train_dataset=frame", "frame", "Pass it as train"),
    ),
}
TRACKER = """
import accelerate
class Tracker(accelerate.tracking.GeneralTracker):
    name = "mine"
    requires_logging_directory = False
    main_process_only = True
    tracker = None
    def store_init_configuration(self, values): pass
    def log(self, values, step): pass
"""
OF_FINETUNING["a tracker that is a class"] = Walk(
    {},
    TRACKER + OF_FINETUNING["a tracker that is a class"].words,
    OF_FINETUNING["a tracker that is a class"].remedies,
)

RUN = """
run = ampft.FinishedRun("run")
answers = run.predict(["w1", "w2 w3"])
"""
OF_RUNS = {
    "inputs in no order": Walk(
        {},
        RUN.replace('["w1", "w2 w3"]', '{"w1", "w2"}'),
        (instead('{"w1", "w2"}', '["w1", "w2"]', "Pass a list"),),
    ),
    "no inputs": Walk(
        {},
        RUN.replace('["w1", "w2 w3"]', "[]"),
        (instead("[]", '["w1"]', "Pass at least one row"),),
    ),
    "a run that was replaced": Walk(
        {},
        RUN.replace(
            "answers",
            'import shutil; shutil.rmtree("run"); shutil.copytree("inspected", "run")\nanswers',
        ),
        (instead("answers", 'run = ampft.FinishedRun("run")\nanswers', "Open it again"),),
    ),
    "an unknown device": Walk(
        {},
        '\nresolved = ampft.resolve("bf16", "tpu9")\n',
        (instead('"tpu9"', '"cpu"', "choose 'cpu'"),),
    ),
    "a device that is not there": Walk(
        {},
        '\nresolved = ampft.resolve("bf16", "cuda")\n',
        (instead('"cuda"', '"cpu"', "Use the device cpu"),),
    ),
}
WALKS = {**OF_LOOPS, **OF_FINETUNING, **OF_RUNS}
