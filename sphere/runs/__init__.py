"""The shell around training: records, checkpoints, and the loop that writes them."""
