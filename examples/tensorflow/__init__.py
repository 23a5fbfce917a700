"""Training with TensorFlow on several workers (TF_CONFIG), or on all GPUs of one worker."""
