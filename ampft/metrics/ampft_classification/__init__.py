"""The folder that `evaluate.load(ampft.metrics.metric_path())` reads."""
