"""The folder that `evaluate.load(ampft.doors.evaluate_metric.metric_path())` reads."""
