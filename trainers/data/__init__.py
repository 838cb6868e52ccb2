"""From judged groups to tensors: training rows, minibatches, micro-batches and how they are laid out."""
