"""What experiments share: which runs exist, how they are grouped, launched and read. The experiments: sphere/experiments/."""
