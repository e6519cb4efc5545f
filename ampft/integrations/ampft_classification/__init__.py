"""The folder that `evaluate.load(ampft.integrations.evaluate_metric.metric_path())` reads."""
