"""Where examples come from: files, the hub, folders, and the built-in data sets."""
