"""Training of the model that is served: views of the cache with gradients, losses, loops."""
