"""What a run leaves on disk: its folder, its record, its predictions, its card."""
