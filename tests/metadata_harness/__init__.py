"""A cluster for tests of metadata and administration: images, a controller in a simulated world, handlers on it."""
