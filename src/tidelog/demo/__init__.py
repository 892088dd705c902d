"""The flash sale: real orders in bursts, workers that never oversell, a Spark pipeline, and an independent checker.

gateway -> orders -> worker x 2 <-> ledger (SQLite, with an outbox) -> order-events -> messages, risk, statistics
                                                                                    -> pipeline -> Parquet, reorders

An order is settled when its outcome (accepted, sold out or expired) is in the ledger.
"""
