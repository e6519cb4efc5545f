"""The folder that `evaluate.load(ampft.report.metric_path())` reads."""
