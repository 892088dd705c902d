"""Recorded answers of Apache Kafka, and the comparison of a broker with them."""
