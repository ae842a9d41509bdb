"""From a configuration and data to a trained model."""
