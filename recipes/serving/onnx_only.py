"""Predict texts with an ONNX artifact: onnxruntime, tokenizers and numpy, without PyTorch."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


def main(folder: Path, texts: list[str]) -> None:
    """Print the most probable label of each text, and its probability."""
    about = json.loads((folder / "artifact.json").read_text(encoding="utf-8"))
    text = about["text"] or {"stride": 0}
    if about["decision"] or about["task"] != "text" or text["stride"] is not None:
        sys.exit(
            f"{folder}: the model decides by fitted thresholds, a temperature or abstention, reads "
            "windows, or gives several labels, which this script does not do. Use ampft predict."
        )
    if len(about["input_columns"]) > 1:
        sys.exit(f"{folder}: the model reads pairs of texts. Use ampft predict.")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(about["text"]["max_length"])
    session = onnxruntime.InferenceSession(str(folder / about["model"]))
    for text in texts:  # one at a time, so nothing is padded
        encoded = tokenizer.encode(text)
        columns = (encoded.ids, encoded.attention_mask, encoded.type_ids)
        names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = {name: np.array([column]) for name, column in zip(names, columns, strict=True)}
        (logits,) = session.run(["logits"], {name: inputs[name] for name in about["inputs"]})
        scores = np.exp(logits[0] - logits[0].max())
        label = about["label_names"][scores.argmax()]
        print(label, f"{scores.max() / scores.sum():.4f}", text, sep="\t")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
