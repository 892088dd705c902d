"""Mirror the topics and consumer groups of a shop from one cluster to another.

SOURCE is HOST:PORT of the cluster to copy from, for example Apache Kafka. The target is the cluster with which the
pipeline runs.
"""

import os

from tidelog.pipelines import mirror

shop = mirror("shop", source=os.environ["SOURCE"], topics="shop-.*", groups="shop-.*")
