"""`ampft audit`: rebuild a run from its record, repeat its first steps, and compare."""
