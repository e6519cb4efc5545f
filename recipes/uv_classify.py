"""Fine-tune on a rented machine with uv, which installs what the comment below lists.

    uv run uv_classify.py --mixed_precision bf16 --dataset_name CogComp/trec --push_to_hub

Flags are those of `ampft train`. A machine that is given back keeps no files: `--push_to_hub` (with
HF_TOKEN set) or a mounted `--output_dir` saves the result, and `--max_time 50min` ends the training
in time to be evaluated.
"""
# /// script
# requires-python = ">=3.11"
# dependencies = ["ampft[demo,lora,sounds]"]
# ///

import sys

try:
    from ampft.cli import main
except ImportError as error:  # plain python, which installs nothing
    hint = f" ({sys.executable}). Start this script with `uv run`." if error.name else ""
    print(f"error: {error}{hint}", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
