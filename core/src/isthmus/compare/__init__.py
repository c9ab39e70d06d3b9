"""Where two backends disagree, by how much, and at which node it starts."""
