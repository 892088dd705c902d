"""One interface to all metadata stores for the contract suite: simulated ones, SQLite, ZooKeeper and etcd."""
