"""Tests in `preloaded` run only in the process that `test_on_fake_cuda.py` starts for them."""

import os

collect_ignore = [] if os.environ.get("AMPFT_FAKE_CUDA") else ["preloaded"]
