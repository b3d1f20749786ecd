"""What is drawn, computed from plain data: frames of the player, timelines, charts, files to save."""
