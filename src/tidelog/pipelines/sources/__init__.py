"""Sources of pipelines besides topics: lakes, databases, files and HTTP endpoints."""
