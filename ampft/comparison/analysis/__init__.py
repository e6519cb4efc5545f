"""From run folders to what a comparison found."""
