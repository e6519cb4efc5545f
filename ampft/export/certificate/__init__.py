"""The certificate of an artifact: a paired comparison with the model that it came from."""
