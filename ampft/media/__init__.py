"""Images, sounds, and images with masks."""
