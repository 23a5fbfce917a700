"""Models in processes of their own, and the queue of requests before them."""
