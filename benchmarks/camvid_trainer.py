"""Train ERFNet on CamVid with the Trainer of transformers; `camvid.py` runs it.

python benchmarks/camvid_trainer.py --data_dir CAMVID --mode bf16 --seed 0 --out results.jsonl
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import SegformerImageProcessorPil, Trainer, TrainingArguments, set_seed

from ampft.media.erfnet import ErfnetConfig, ErfnetForSemanticSegmentation

CLASSES, UNLABELLED, IGNORED = 11, 11, 255


class Frames(Dataset[dict[str, torch.Tensor]]):
    """The frames of a split with their masks; those of training in the size of the input."""

    def __init__(self, folder: Path, split: str, size: tuple[int, int]) -> None:
        self.images = sorted((folder / split).glob("*.png"))
        self.masks = [folder / f"{split}annot" / path.name for path in self.images]
        self.size = size if split == "train" else None
        self.processor = SegformerImageProcessorPil(size={"height": size[0], "width": size[1]})

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image = Image.open(self.images[index]).convert("RGB")
        mask: Image.Image = Image.open(self.masks[index])
        if self.size is not None:
            mask = mask.resize(self.size[::-1], Image.Resampling.NEAREST)
        labels = torch.from_numpy(np.array(mask)).long()
        labels[labels == UNLABELLED] = IGNORED
        pixels = self.processor(image, return_tensors="pt")["pixel_values"][0]
        return {"pixel_values": pixels, "labels": labels}


def mean_iou(model: torch.nn.Module, frames: Frames, mode: str) -> tuple[float, float]:
    """Return mean IoU and pixel accuracy, with logits resized to the masks."""
    counts = torch.zeros(CLASSES * CLASSES, dtype=torch.int64)
    model.eval()
    for index in range(len(frames)):
        frame = frames[index]
        device = next(model.parameters()).device
        pixels, labels = frame["pixel_values"][None].to(device), frame["labels"]
        with (
            torch.no_grad(),
            torch.autocast(device.type, dtype=torch.bfloat16, enabled=mode == "bf16"),
        ):
            logits = model(pixels).logits.float()
        whole = functional.interpolate(logits, labels.shape, mode="bilinear", align_corners=False)
        predicted = whole.argmax(dim=1)[0].cpu()
        counted = labels != IGNORED
        cells = labels[counted] * CLASSES + predicted[counted]
        counts += torch.bincount(cells, minlength=CLASSES * CLASSES)
    confusion = counts.reshape(CLASSES, CLASSES).double()
    correct = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - correct
    iou = (correct / union)[union > 0].mean()
    return float(iou), float(correct.sum() / confusion.sum())


def main() -> None:
    """Train one seed, evaluate on the validation frames, and append the result."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--data_dir", type=Path, required=True, help="folder of CamVid")
    parser.add_argument("--mode", choices=("fp32", "bf16"), required=True, help="precision")
    parser.add_argument("--seed", type=int, required=True, help="seed of weights and order")
    parser.add_argument("--image_size", default="180,240", help="height,width of the input")
    parser.add_argument("--steps", type=int, required=True, help="optimizer steps")
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines file to append to")
    args = parser.parse_args()
    height, width = map(int, args.image_size.split(","))
    set_seed(args.seed)
    model = ErfnetForSemanticSegmentation(ErfnetConfig(num_labels=CLASSES))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            learning_rate=5e-4,
            max_steps=args.steps,
            bf16=args.mode == "bf16",
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            report_to=[],
            seed=args.seed,
            disable_tqdm=True,
            logging_strategy="no",
        )
        frames = Frames(args.data_dir, "train", (height, width))
        trainer = Trainer(model=model, args=arguments, train_dataset=frames)
        started = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - started
    iou, accuracy = mean_iou(model, Frames(args.data_dir, "val", (height, width)), args.mode)
    row = {
        "system": "trainer",
        "mode": args.mode,
        "seed": args.seed,
        "mean_iou": iou,
        "pixel_accuracy": accuracy,
        "step_seconds": seconds / args.steps,
    }
    with args.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(row)


if __name__ == "__main__":
    main()
