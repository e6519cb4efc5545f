"""A comparison as one HTML file: tables and charts that need no network and no script."""
