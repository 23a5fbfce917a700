"""What requests must look like and what is answered. Knows neither sockets nor PyTorch."""
