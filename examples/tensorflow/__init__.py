"""Training with TensorFlow: several workers (TF_CONFIG), or one worker with its GPUs."""
