"""What is compared with, in PyTorch."""
