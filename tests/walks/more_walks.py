"""Rare data, masks, sounds and own code that end in a message, and what the message advises."""

from __future__ import annotations

import io

import numpy as np
import soundfile
from code_walks import LOOP, SETTING
from data_walks import AB, FILE, PIXEL, WHITE, Files, Remedy, T, Walk, csv, lines
from file_walks import FIRST, SECOND, parquet
from media_walks import GOOD, PIXELS, M, mask, masks
from training_walks import instead


def loud(scale: float) -> bytes:
    """Return a second of a tone as WAV with samples in floating point."""
    content = io.BytesIO()
    wave = scale * np.sin(np.arange(8000) / 3)
    soundfile.write(content, wave.astype(np.float32), 8000, format="WAV", subtype="FLOAT")
    return content.getvalue()


def png(content: bytes) -> dict[str, object]:
    return {"bytes": content, "path": "x.png"}


IMAGES = [png(PIXEL), png(WHITE)] * 2
MASKS = [png(M)] * 4
OF_MASK_TABLES = {
    "no column of masks": Walk(
        {"t.parquet": parquet(image=IMAGES, other=MASKS)},
        "--train_file t.parquet --task pixels",
        (Remedy("Pass the column of the masks", add="--label_column_name other"),),
    ),
    "two columns of images": Walk(
        {"t.parquet": parquet(image=IMAGES, second=IMAGES, mask=MASKS)},
        "--train_file t.parquet --task pixels",
        (Remedy("Pass one", add="--image_column_name image"),),
    ),
    "a damaged Parquet file of masks": Walk(
        {"t.parquet": b"PAR1 and no more"},
        "--train_file t.parquet --task pixels",
        (Remedy("cannot read", files={"t.parquet": parquet(image=IMAGES, mask=MASKS)}),),
    ),
    "a row without a mask": Walk(
        {"t.parquet": parquet(image=IMAGES, mask=[*MASKS[1:], None])},
        "--train_file t.parquet --task pixels",
        (Remedy("Add it", files={"t.parquet": parquet(image=IMAGES, mask=MASKS)}),
         Remedy("remove the row", files={"t.parquet": parquet(image=IMAGES[1:], mask=MASKS[1:])})),
    ),
    "pixels of one class": Walk(
        masks(mask(0, 0), mask(0, 0)) | {"n.txt": "Road\nCar\n"},
        f"{PIXELS} --class_names_file n.txt",
        (Remedy("check the masks", files=masks(mask(0, 1), mask(0, 1))),),
    ),
    "images in two splits": Walk(
        GOOD, f"{PIXELS} --fail_on_leak",
        (Remedy("Remove them from one of the splits", files={"d/val/0.png": WHITE}),),
    ),
    "boxes": Walk(
        {"d/train/a.png": PIXEL, "d/train/b.png": WHITE,
         "d/train/_annotations.coco.json": "{}"},
        "--dataset_name d",
        (Remedy("put each class into its own folder", files={
            "d/train/_annotations.coco.json": None, "d/train/a.png": None, "d/train/b.png": None,
            "d/train/x/a.png": PIXEL, "d/train/y/b.png": WHITE}),
         Remedy("To classify pixels, export masks", add="--task pixels", files={
             "d/train/_annotations.coco.json": None, "d/trainannot/a.png": M,
             "d/trainannot/b.png": M})),
    ),
    "a loud sound": Walk(
        {"d/a/1.wav": loud(20000), "d/a/2.wav": FIRST, "d/b/1.wav": SECOND, "d/b/2.wav": SECOND},
        "--dataset_name d",
        (Remedy("Divide samples that were 16-bit integers by 32768",
                files={"d/a/1.wav": loud(20000 / 32768)}),
         Remedy("or save them as such", files={"d/a/1.wav": FIRST})),
    ),
}  # fmt: skip
OF_TABLES = {
    "a choice in a file": Walk(
        T | {"c.yaml": "train_file: t.csv\nmixed_precision: fp17\n"}, "--config c.yaml",
        (Remedy("choose from", files={"c.yaml": "train_file: t.csv\nmixed_precision: bf16\n"}),),
    ),
    "lists of words as texts": Walk(
        {"t.parquet": parquet(tokens=[["a", "b"], ["c"]] * 2, label=["x", "y"] * 2)},
        "--train_file t.parquet --text_column_names tokens --task text",
        (Remedy("add --task tokens", without=" --text_column_names tokens --task text",
                add=" --task tokens", files={"t.parquet": parquet(
                    tokens=[["a", "b"], ["c"]] * 2, label=[["O", "B-X"], ["O"]] * 2)}),),
    ),
    "folders of splits without classes": Walk(
        {"d/train/a.png": PIXEL, "d/test/b.png": WHITE}, "--dataset_name d",
        (Remedy("Put the images of each class into its own folder", files={
            "d/train/a.png": None, "d/test/b.png": None, "d/train/x/a.png": PIXEL,
            "d/train/y/b.png": WHITE, "d/test/x/a.png": WHITE, "d/test/y/b.png": PIXEL}),
         Remedy("pass a table of paths and labels with --train_file", without="--dataset_name d",
                add=FILE, files={"t.csv": "image,label\nd/train/a.png,x\nd/test/b.png,y\n"})),
    ),
    "a test split that is not there": Walk(
        T | {"v.csv": AB}, f"{FILE} --validation_file v.csv --folds 2 --leave_out_test",
        (Remedy("Pass --test_file", add="--test_file u.csv", files={"u.csv": csv("b a")}),
         Remedy("remove --validation_file", without="--validation_file v.csv "),
         ),
    ),
    "a tag that no name has": Walk(
        {"t.jsonl": lines(*({"tokens": ["Ann", "ran"], "ner_tags": ["B-PER", "O"]},) * 4,
                          {"tokens": ["Rome", "is"], "ner_tags": ["B-LOC", "O"]}),
         "n.txt": "O\nB-PER\nI-PER\n"},
        "--train_file t.jsonl --task tokens --class_names_file n.txt",
        (Remedy("Fix the tag", files={"t.jsonl": lines(
            *({"tokens": ["Ann", "ran"], "ner_tags": ["B-PER", "O"]},) * 5)}),
         Remedy("or add its name", files={"n.txt": "O\nB-PER\nI-PER\nB-LOC\nI-LOC\n"})),
    ),
}  # fmt: skip
DATA = {**OF_MASK_TABLES, **OF_TABLES}


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
CODE = {
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
