"""What people say about PyTorch, each sentence with a measurement and a rule that turns it into a verdict."""
