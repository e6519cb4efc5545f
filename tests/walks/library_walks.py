"""Code that calls parts of the library: models, steps, claims, data in memory."""

from __future__ import annotations

from code_walks import FINETUNE, LOOP, SETTING
from data_walks import Files, Remedy, T, Walk
from training_walks import instead, without


def code(text: str, *remedies: Remedy, files: Files | None = None) -> Walk:
    """Return the walk of code in Python."""
    return Walk(files or {}, text, remedies)


DAMAGED = """
ampft.finetune("train.csv", validation="v.csv", test="u.csv", model_name_or_path="base",
    lora_r=2, merge_lora=False, max_train_steps=2, use_cpu=True, cpu_threads=1, output_dir="o")
model = transformers.AutoModel.from_pretrained("base")
model.save_pretrained("kept")
model.embeddings.word_embeddings.weight.data.add_(1)
model.save_pretrained("base")
answers = ampft.FinishedRun("o").predict(["w1"])
"""
RESTORED = """
transformers.AutoModel.from_pretrained("kept").save_pretrained("base")
answers"""
STEPS = """
from ampft.data.step_batches import balanced_micro_batches
parts = balanced_micro_batches(np.array([3, 0, 2]), 2, padded=True)
"""
PACKED = """
model = transformers.AutoModelForSequenceClassification.from_pretrained("xlnet")
from ampft.fast.packing.install import install_packing, packing_support
packed = install_packing(model)
"""
DROPOUT = """
config = transformers.BertConfig.from_pretrained("model")
config.attention_probs_dropout_prob = 0.1
model = transformers.BertForSequenceClassification(config)
model.config._attn_implementation = "flash_attention_3"
from ampft.models.training_mode import check_kernel_supports_dropout
check_kernel_supports_dropout(model)
"""
OF_PARTS = {
    "adapters of another model": code(
        DAMAGED,
        instead(
            DAMAGED[: DAMAGED.index("\nanswers") + 8],
            RESTORED,
            "Restore the weights of that model",
        ),
    ),
    "no batches for a doctor": code(
        "\nfrom ampft.lab.doctor.examine import scan\nmodel = torch.nn.Linear(4, 2)\nbatches = []\n"
        "found = scan(model, batches, loss=lambda m, b: m(b).sum())\n",
        instead("= []", "= [torch.randn(3, 4)]", "Pass at least one batch"),
    ),
    "examples without tokens": code(
        STEPS, instead("[3, 0, 2]", "[3, 2]", "Remove examples without tokens")
    ),
    "packing of a model that cannot": code(
        PACKED,
        instead("packed = install_packing(model)", "s = packing_support(model)",
                "Check packing_support(model) first"),
    ),
    "a kernel without dropout": code(
        DROPOUT,
        instead('"flash_attention_3"', '"sdpa"', "attn_implementation='sdpa'"),
        instead("= 0.1", "= 0.0", "or set attention_probs_dropout_prob to 0"),
    ),
    "an answer of a ledger": code(
        '\nampft.judge("l", best=["p.csv"], settings=ampft.LedgerSettings(answers="shut"))\n',
        instead('best=["p.csv"], settings=ampft.LedgerSettings(answers="shut")',
                'best=["fp32-1", "fp32-2", "fp32-3"]',
                "must be sealed or open"),
    ),
    "a claim": code(
        '\nampft.judge("ledger", candidate=["bf16-1", "bf16-2", "bf16-3"], claim="worse")\n',
        instead('"worse"', '"better"', "must be one of better"),
    ),
    "a margin": code(
        "\nfrom ampft.comparison.analysis.compare_folders import compare_folders\n"
        "found = compare_folders([Path('fp32-1'), Path('bf16-1')], margin=0)\n",
        instead("margin=0", "margin=0.01", "Use a value such as 1"),
    ),
    "an accelerator of another precision": code(
        '\none = ampft.make_accelerator("fp32")\nother = ampft.make_accelerator("bf16")\n',
        instead('one = ampft.make_accelerator("fp32")\n', "", "Use a separate process"),
    ),
    "groups of parameters that vanish": code(
        LOOP.replace("    for step_batch in training:\n        training.step(summed)",
                     "    for step_batch in training:\n        training.step(summed)\n"
                     "        optimizer.param_groups.pop()").replace(
            "SGD(model.parameters(), lr=0.1)",
            "SGD([{'params': [model.weight]}, {'params': [model.bias]}], lr=0.1)"),
        instead("        optimizer.param_groups.pop()", "        pass", "give the optimizers all"),
    ),
    "rows of an own loop": code(
        LOOP.replace(SETTING, "epochs=1, overwrite_output_dir=True")
        + '\nampft.FinishedRun("o").predict(["w1"])\n',
        instead('ampft.FinishedRun("o").predict(["w1"])',
                'from safetensors.torch import load_file\nmodel.load_state_dict(load_file('
                '"o/model.safetensors"))', "Load model.safetensors into the model there"),
    ),
}  # fmt: skip

LOADED = "\ndata = ampft.load_data(ampft.ClassifyArguments({}))\n"

STANDARD_INPUT = """
import io, sys
from ampft.kinds.prediction import PredictRequest
from ampft.runs.predict import predict_file
before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(b"caf\\xe9\\n"), encoding="utf-8")
try:
    predict_file("run", PredictRequest(files=["-"]))
finally:
    sys.stdin = before
"""
FOLDERS = LOOP.replace(SETTING, "epochs=1, overwrite_output_dir=True")
OF_INPUTS = {
    "no file to train on": code(
        LOADED.format("validation_file='t.csv'"),
        instead("validation_file", "train_file", "Pass a file to train on"),
        files=T,
    ),
    "a file and a data set": code(
        LOADED.format("train_file='t.csv', dataset_name='stdlib'"),
        without(", dataset_name='stdlib'", "Pass only one of them"),
        files=T,
    ),
    "masks of nothing": code(
        LOADED.format("task='pixels'"),
        instead("task='pixels'", "task='pixels', dataset_name='masks'", "Pass a folder with"),
    ),
    "bytes of another encoding": code(
        STANDARD_INPUT, instead('b"caf\\xe9\\n"', '"caf\\xe9\\n".encode()', "Convert it: iconv")
    ),
    "a table in standard input": code(
        STANDARD_INPUT.replace("caf\\xe9", "text,label\\ngood,bad"),
        Remedy("Pass the table as FILE", without='files=["-"]', add='files=["t.csv"]'),
        files=T,
    ),
    "an index of the name": code(
        FINETUNE.replace("finetune(frame,", "finetune(frame.assign(ampft_index=1)[2:],"),
        instead("ampft_index=1", "mine=1", "Rename the column"),
    ),
    "examples with a collation of their own": code(
        FOLDERS.replace(
            "ampft.Training(model, optimizer, examples,",
            "ampft.Training(model, optimizer, ampft.TensorExamples({'x': torch.randn(12, 4)}),"
            " collate=list,",
        ).replace("x, y = batch\n    return", "x, y = batch['x'], torch.zeros(len(batch['x']))"
                  ".long()\n    return"),
        without("collate=list,", "Leave out weights and collate"),
    ),
}  # fmt: skip

CODE = {**OF_PARTS, **OF_INPUTS}
