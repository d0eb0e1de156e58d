from .cluster import Cluster as Cluster
