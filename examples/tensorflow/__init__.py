"""Training with TensorFlow on several workers (TF_CONFIG), or on one worker with its GPUs."""
