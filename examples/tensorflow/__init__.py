"""The same kind of training with TensorFlow: several workers by TF_CONFIG, or one with its GPUs."""
