"""TensorFlow itself: names that it has public nowhere, and what its errors say."""
